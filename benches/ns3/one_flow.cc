// One bulk flow over a link in ns-3: the topology of neap's lab example `one_flow`. Writes a line per
// 10 ms of virtual time, "seconds cwnd_bytes queue_bytes", and a last line of JSON.
#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

using namespace ns3;

namespace {

constexpr uint16_t kPort = 5001;
constexpr uint32_t kSegment = 1448;

uint32_t g_cwnd = 0;
std::ofstream g_series;
Ptr<Queue<Packet>> g_queue;

void CwndChanged(uint32_t, uint32_t now) { g_cwnd = now; }

void Sample() {
    g_series << Simulator::Now().GetSeconds() << ' ' << g_cwnd << ' ' << g_queue->GetNBytes()
             << '\n';
    Simulator::Schedule(MilliSeconds(10), &Sample);
}

// The socket exists only once the application has started.
void Watch(Ptr<BulkSendApplication> application) {
    application->GetSocket()->TraceConnectWithoutContext("CongestionWindow",
                                                         MakeCallback(&CwndChanged));
}

}  // namespace

int main(int argc, char** argv) {
    std::string control = "cubic";
    std::string series = "/dev/null";
    double seconds = 20;
    uint32_t buffer = 2500;
    CommandLine cmd(__FILE__);
    cmd.AddValue("control", "cubic or bbr", control);
    cmd.AddValue("seconds", "virtual time", seconds);
    cmd.AddValue("buffer", "packets in the bottleneck's queue", buffer);
    cmd.AddValue("series", "file for the samples", series);
    cmd.Parse(argc, argv);
    g_series.open(series);

    Config::SetDefault("ns3::TcpL4Protocol::SocketType",
                       StringValue(control == "bbr" ? "ns3::TcpBbr" : "ns3::TcpCubic"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kSegment));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(32 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(32 << 20));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));

    NodeContainer nodes;
    nodes.Create(3);
    PointToPointHelper access;
    access.SetDeviceAttribute("DataRate", StringValue("10Gbps"));
    access.SetChannelAttribute("Delay", StringValue("10us"));
    access.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("100000p"));
    PointToPointHelper wan;
    wan.SetDeviceAttribute("DataRate", StringValue("1Gbps"));
    wan.SetChannelAttribute("Delay", StringValue("19990us"));
    wan.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue(std::to_string(buffer) + "p"));
    NetDeviceContainer near = access.Install(nodes.Get(0), nodes.Get(1));
    NetDeviceContainer far = wan.Install(nodes.Get(1), nodes.Get(2));
    g_queue = DynamicCast<PointToPointNetDevice>(far.Get(0))->GetQueue();

    InternetStackHelper stack;
    stack.Install(nodes);
    Ipv4AddressHelper addresses;
    addresses.SetBase("10.0.0.0", "255.255.255.0");
    addresses.Assign(near);
    addresses.SetBase("10.0.1.0", "255.255.255.0");
    Ipv4InterfaceContainer there = addresses.Assign(far);
    // Assign() gives each device a qdisc; the queue of the device is the one that is compared.
    TrafficControlHelper none;
    none.Uninstall(near);
    none.Uninstall(far);
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();

    InetSocketAddress remote(there.GetAddress(1), kPort);
    PacketSinkHelper sink("ns3::TcpSocketFactory",
                          InetSocketAddress(Ipv4Address::GetAny(), kPort));
    ApplicationContainer sinks = sink.Install(nodes.Get(2));
    BulkSendHelper bulk("ns3::TcpSocketFactory", remote);
    bulk.SetAttribute("SendSize", UintegerValue(65536));
    ApplicationContainer sources = bulk.Install(nodes.Get(0));
    sources.Start(Seconds(0));
    Simulator::Schedule(MicroSeconds(1), &Watch,
                        DynamicCast<BulkSendApplication>(sources.Get(0)));
    Simulator::Schedule(MilliSeconds(10), &Sample);

    auto begin = std::chrono::steady_clock::now();
    Simulator::Stop(Seconds(seconds));
    Simulator::Run();
    std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    auto received = DynamicCast<PacketSink>(sinks.Get(0))->GetTotalRx();
    std::printf("{\"who\": \"ns-3.37\", \"control\": \"%s\", \"seconds\": %g, \"wall\": %.3f, "
                "\"goodput_mbit\": %.1f}\n",
                control.c_str(), seconds, wall.count(), received * 8e-6 / seconds);
    Simulator::Destroy();
    return 0;
}
