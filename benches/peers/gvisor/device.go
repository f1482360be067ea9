package main

import (
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Offsets and values of struct virtio_net_hdr.
const (
	vnetHeader    = 10
	needsChecksum = 1
	gsoTCPv4      = 1
)

// tun is a link endpoint on a TUN with a virtio-net header: super-frames in both directions.
// netstack has no such device of its own; its embedders use a plain TUN, or AF_PACKET.
type tun struct {
	fd         int
	mtu        uint32
	dispatcher stack.NetworkDispatcher
	once       sync.Once
}

func openTun(name string, mtu uint32) (*tun, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, err
	}
	offloads := unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	return &tun{fd: fd, mtu: mtu}, unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads)
}

func (t *tun) MTU() uint32                          { return t.mtu }
func (t *tun) SetMTU(mtu uint32)                    { t.mtu = mtu }
func (t *tun) MaxHeaderLength() uint16              { return 0 }
func (t *tun) LinkAddress() tcpip.LinkAddress       { return "" }
func (t *tun) SetLinkAddress(tcpip.LinkAddress)     {}
func (t *tun) IsAttached() bool                     { return t.dispatcher != nil }
func (t *tun) Wait()                                {}
func (t *tun) AddHeader(*stack.PacketBuffer)        {}
func (t *tun) Close()                               {}
func (t *tun) SetOnCloseAction(func())              {}
func (t *tun) GSOMaxSize() uint32                   { return 65535 - 60 }
func (t *tun) SupportedGSO() stack.SupportedGSO     { return stack.HostGSOSupported }
func (t *tun) ParseHeader(*stack.PacketBuffer) bool { return true }

func (t *tun) ARPHardwareType() header.ARPHardwareType {
	return header.ARPHardwareNone
}

func (t *tun) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

func (t *tun) Attach(dispatcher stack.NetworkDispatcher) {
	t.dispatcher = dispatcher
	if dispatcher != nil {
		t.once.Do(func() { go t.receive() })
	}
}

func (t *tun) receive() {
	frame := make([]byte, vnetHeader+65536)
	for {
		n, err := unix.Read(t.fd, frame)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return
		}
		if n <= vnetHeader {
			continue
		}
		packet := stack.NewPacketBuffer(stack.PacketBufferOptions{
			Payload: buffer.MakeWithData(frame[vnetHeader:n]),
		})
		t.dispatcher.DeliverNetworkPacket(ipv4.ProtocolNumber, packet)
		packet.DecRef()
	}
}

func (t *tun) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	for sent, packet := range packets.AsSlice() {
		var vnet [vnetHeader]byte
		fillVnetHeader(&vnet, packet)
		slices := append([][]byte{vnet[:]}, packet.AsSlices()...)
		if _, err := unix.Writev(t.fd, slices); err != nil {
			return sent, tcpip.TranslateErrno(err.(unix.Errno))
		}
	}
	return packets.Len(), nil
}

func fillVnetHeader(vnet *[vnetHeader]byte, packet *stack.PacketBuffer) {
	gso := packet.GSOOptions
	if gso.Type == stack.GSONone {
		return
	}
	put := func(at int, value uint16) { vnet[at], vnet[at+1] = byte(value), byte(value>>8) }
	if gso.NeedsCsum {
		vnet[0] = needsChecksum
		put(6, gso.L3HdrLen)
		put(8, gso.CsumOffset)
	}
	put(2, uint16(packet.HeaderSize()))
	if packet.Data().Size() > int(gso.MSS) {
		vnet[1] = gsoTCPv4
		put(4, gso.MSS)
	}
}
