// gVisor's netstack as a peer of the benchmarks, on a TUN with a virtio-net header.
//
//	gvisor MODE [--interface I] [--target A] [--port P] [--flows N] [--seconds S] [--congestion C]
//
// Modes: send receive ping-pong connect idle. Each prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	mtu       = 1500
	bufferMax = 4 << 20 // what the kernel's tcp_wmem and tcp_rmem allow, about
	writeSize = 128 << 10
	readSize  = 256 << 10
)

type bench struct {
	stack  *stack.Stack
	target tcpip.FullAddress
	flows  int
	length time.Duration
}

type result map[string]any

func main() {
	if len(os.Args) < 2 {
		fatal(fmt.Errorf("gvisor MODE [flags]"))
	}
	flags := flag.NewFlagSet("gvisor", flag.ExitOnError)
	ifname := flags.String("interface", "nb0", "TUN device with vnet_hdr")
	address := flags.String("address", "10.99.0.2", "own address")
	target := flags.String("target", "10.99.0.1", "far side")
	port := flags.Int("port", 7001, "port of the far side")
	flows := flags.Int("flows", 1, "connections")
	seconds := flags.Float64("seconds", 5, "length of the run")
	congestion := flags.String("congestion", "cubic", "reno or cubic")
	_ = flags.Parse(os.Args[2:])

	length := time.Duration(*seconds * float64(time.Second))
	time.AfterFunc(length+time.Minute, func() { os.Exit(3) })
	device, err := openTun(*ifname, mtu)
	fatal(err)
	b := bench{
		stack:  newStack(device, ip4(*address), *congestion),
		target: tcpip.FullAddress{NIC: 1, Addr: ip4(*target), Port: uint16(*port)},
		flows:  *flows,
		length: length,
	}
	modes := map[string]func() result{
		"send": b.send, "receive": b.receive, "ping-pong": b.pingPong, "connect": b.connect, "idle": b.idle,
	}
	mode := modes[os.Args[1]]
	if mode == nil {
		fatal(fmt.Errorf("there is no mode %s", os.Args[1]))
	}
	line, err := json.Marshal(mode())
	fatal(err)
	fmt.Println(string(line))
	if os.Args[1] == "idle" {
		time.Sleep(length)
	}
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "gvisor:", err)
		os.Exit(1)
	}
}

func check(err tcpip.Error) {
	if err != nil {
		fatal(fmt.Errorf("%s", err))
	}
}

func ip4(text string) tcpip.Address {
	ip := net.ParseIP(text).To4()
	if ip == nil {
		fatal(fmt.Errorf("%s is not an IPv4 address", text))
	}
	return tcpip.AddrFromSlice(ip)
}

func newStack(device stack.LinkEndpoint, address tcpip.Address, congestion string) *stack.Stack {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, icmp.NewProtocol4},
	})
	check(s.CreateNIC(1, device))
	own := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: address.WithPrefix()}
	check(s.AddProtocolAddress(1, own, stack.AddressProperties{}))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	recovery, control := tcpip.TCPRACKLossDetection, tcpip.CongestionControlOption(congestion)
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: bufferMax, Max: bufferMax}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: bufferMax}
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &recovery, &control, &send, &receive} {
		check(s.SetTransportProtocolOption(tcp.ProtocolNumber, option))
	}
	return s
}

// dial tries for five seconds: the far side may still be starting.
func (b *bench) dial() *gonet.TCPConn {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for {
		conn, err := gonet.DialContextTCP(ctx, b.stack, b.target, ipv4.ProtocolNumber)
		if err == nil {
			return conn
		}
		if ctx.Err() != nil {
			fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (b *bench) send() result {
	var bytes atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	end := start.Add(b.length)
	for range b.flows {
		conn := b.dial()
		all.Go(func() {
			data := make([]byte, writeSize)
			_ = conn.SetDeadline(end)
			for time.Now().Before(end) {
				n, err := conn.Write(data)
				bytes.Add(int64(n))
				if err != nil {
					break
				}
			}
			_ = conn.CloseWrite()
			_ = conn.SetDeadline(time.Now().Add(12 * time.Second))
			_, _ = conn.Read(data)
			_ = conn.Close()
		})
	}
	time.Sleep(time.Until(end))
	seconds := time.Since(start).Seconds()
	retransmits := b.stack.Stats().TCP.Retransmits.Value()
	all.Wait()
	return result{"bytes": bytes.Load(), "seconds": seconds, "retransmits": retransmits, "peak_rss_kb": status("VmHWM")}
}

func (b *bench) receive() result {
	var bytes atomic.Int64
	start := time.Now()
	end := start.Add(b.length - 200*time.Millisecond) // before the far side does
	for range b.flows {
		conn := b.dial()
		go func() {
			data := make([]byte, readSize)
			for {
				n, err := conn.Read(data)
				bytes.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
	}
	time.Sleep(time.Until(end))
	total, seconds := bytes.Load(), time.Since(start).Seconds()
	return result{"bytes": total, "seconds": seconds, "gbps": float64(total) * 8 / seconds / 1e9, "peak_rss_kb": status("VmHWM")}
}

func (b *bench) pingPong() result {
	conn := b.dial()
	data := []byte{1}
	samples := make([]float64, 0, 1<<20)
	start, cpu := time.Now(), cpuSeconds()
	for time.Since(start) < b.length {
		before := time.Now()
		if _, err := conn.Write(data); err != nil {
			break
		}
		if _, err := conn.Read(data); err != nil {
			break
		}
		samples = append(samples, microseconds(before))
	}
	return perSecond(samples, time.Since(start), cpuSeconds()-cpu, 0)
}

func (b *bench) connect() result {
	data := []byte{1}
	samples := make([]float64, 0, 1<<20)
	errors := 0
	start, cpu := time.Now(), cpuSeconds()
	for time.Since(start) < b.length {
		before := time.Now()
		conn, err := gonet.DialTCP(b.stack, b.target, ipv4.ProtocolNumber)
		if err != nil {
			errors++
			time.Sleep(time.Millisecond)
			continue
		}
		_, _ = conn.Write(data)
		if n, _ := conn.Read(data); n == 1 {
			samples = append(samples, microseconds(before))
		} else {
			errors++
		}
		_, _ = conn.Read(data)
		_ = conn.Close()
	}
	return perSecond(samples, time.Since(start), cpuSeconds()-cpu, errors)
}

func (b *bench) idle() result {
	runtime.GC()
	before := status("VmRSS")
	conns := make([]*gonet.TCPConn, 0, b.flows)
	for range b.flows {
		conns = append(conns, b.dial())
	}
	time.Sleep(time.Second)
	runtime.GC()
	time.Sleep(time.Second)
	each := float64(status("VmRSS")-before) * 1024 / float64(len(conns))
	runtime.KeepAlive(conns)
	return result{"flows": len(conns), "rss_bytes_per_flow": each}
}

func microseconds(since time.Time) float64 {
	return float64(time.Since(since).Nanoseconds()) / 1e3
}

func perSecond(samples []float64, length time.Duration, cpu float64, errors int) result {
	n := len(samples)
	if n == 0 {
		return result{"samples": 0, "errors": errors}
	}
	sort.Float64s(samples)
	quantile := func(q float64) float64 { return samples[int(float64(n-1)*q)] }
	return result{
		"per_second": float64(n) / length.Seconds(), "errors": errors, "cpu_us": cpu * 1e6 / float64(n), "samples": n,
		"min_us": quantile(0), "p50_us": quantile(.5), "p99_us": quantile(.99), "max_us": quantile(1),
	}
}

// status is a field of /proc/self/status in KiB.
func status(field string) int64 {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, field+":") {
			value, _ := strconv.ParseInt(strings.Fields(line)[1], 10, 64)
			return value
		}
	}
	return 0
}

func cpuSeconds() float64 {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return float64(r.Utime.Sec+r.Stime.Sec) + float64(r.Utime.Usec+r.Stime.Usec)/1e6
}
