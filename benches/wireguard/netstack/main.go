// wireguard-go's device over gVisor's netstack: a WireGuard client in one process, as wireproxy is one.
//
//	netstack --device FILE [--address A] [--mtu N] --forward LISTEN=TARGET...
//	netstack --device FILE [--address A] [--mtu N] --load up|down --target T [--flows N] [--seconds S]
//
// FILE has the settings of the device and of its peer in the words of WireGuard's cross-platform interface. `--forward`
// listens on the host and connects to TARGET through the tunnel, until it is killed. `--load` sends to TARGET or receives from
// it in this process, without a proxy, and prints one JSON object.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/netstack"
)

// Bytes of a call.
const callBytes = 128 << 10

// The last bytes are waited for so long.
const drain = 10 * time.Second

type forwards []string

func (f *forwards) String() string { return strings.Join(*f, " ") }

func (f *forwards) Set(text string) error {
	if _, _, found := strings.Cut(text, "="); !found {
		return errors.New("expected LISTEN=TARGET")
	}
	*f = append(*f, text)
	return nil
}

func main() {
	var all forwards
	settings := flag.String("device", "", "file with the settings of the device")
	address := flag.String("address", "10.90.0.2", "address inside of the tunnel")
	mtu := flag.Int("mtu", 1420, "MTU inside of the tunnel")
	load := flag.String("load", "", "up or down")
	target := flag.String("target", "", "server of the load, behind the tunnel")
	flows := flag.Int("flows", 1, "flows of the load")
	seconds := flag.Float64("seconds", 5, "length of the load")
	flag.Var(&all, "forward", "LISTEN=TARGET, may be repeated")
	flag.Parse()
	tunnel, err := open(*settings, *address, *mtu)
	if err != nil {
		fail(err)
	}
	if *load != "" {
		err = run(tunnel, *load == "up", *target, *flows, *seconds)
		if err != nil {
			fail(err)
		}
		return
	}
	var ends sync.WaitGroup
	for _, one := range all {
		listen, to, _ := strings.Cut(one, "=")
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			fail(err)
		}
		ends.Go(func() { serve(tunnel, listener, to) })
	}
	ends.Wait()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "netstack:", err)
	os.Exit(1)
}

func open(settings, address string, mtu int) (*netstack.Net, error) {
	text, err := os.ReadFile(settings)
	if err != nil {
		return nil, err
	}
	own, err := netip.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	tun, tunnel, err := netstack.CreateNetTUN([]netip.Addr{own}, nil, mtu)
	if err != nil {
		return nil, err
	}
	wireguard := device.NewDevice(tun, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	if err := wireguard.IpcSet(string(text)); err != nil {
		return nil, err
	}
	return tunnel, wireguard.Up()
}

type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// serve joins each connection of the host with one through the tunnel.
func serve(tunnel *netstack.Net, listener net.Listener, target string) {
	for {
		near, err := listener.Accept()
		if err != nil {
			fail(err)
		}
		go func() {
			defer near.Close()
			far, err := tunnel.Dial("tcp", target)
			if err != nil {
				return
			}
			defer far.Close()
			join(near.(halfCloser), far.(halfCloser))
		}()
	}
}

func join(near, far halfCloser) {
	var ways sync.WaitGroup
	for _, way := range [][2]halfCloser{{near, far}, {far, near}} {
		ways.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			_ = way[1].CloseWrite()
		})
	}
	ways.Wait()
}

// run is the load in this process.
func run(tunnel *netstack.Net, isUp bool, target string, flows int, seconds float64) error {
	conns := make([]net.Conn, flows)
	for i := range conns {
		conn, err := tunnel.Dial("tcp", target)
		if err != nil {
			return err
		}
		conns[i] = conn
	}
	var total atomic.Int64
	var ends sync.WaitGroup
	start := time.Now()
	end := start.Add(time.Duration(seconds * float64(time.Second)))
	for _, conn := range conns {
		_ = conn.SetDeadline(end)
		ends.Go(func() {
			buffer := make([]byte, callBytes)
			for {
				call := conn.Read
				if isUp {
					call = conn.Write
				}
				count, err := call(buffer)
				total.Add(int64(count))
				if err != nil {
					return
				}
			}
		})
	}
	ends.Wait()
	took := time.Since(start).Seconds()
	// The far side counts what it gets, until the flows end.
	for _, conn := range conns {
		_ = conn.SetDeadline(time.Now().Add(drain))
		_ = conn.(halfCloser).CloseWrite()
		if isUp {
			_, _ = conn.Read(make([]byte, 1))
		}
		_ = conn.Close()
	}
	fmt.Printf("{\"bytes\":%d,\"seconds\":%.3f,\"gbps\":%.4f}\n", total.Load(), took, float64(total.Load())*8/took/1e9)
	return nil
}
