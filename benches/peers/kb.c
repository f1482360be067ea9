// kb: TCP on the kernel's own sockets. It is the far side of every benchmark, and the peer `kernel`.
//
//   kb MODE [--target A] [--port P] [--flows N] [--seconds S] [--size BYTES] [--write BYTES]
//           [--congestion C] [--fq-rate BITS] [--socks PORT] [--gap MS]
//
// `send` writes up to --write bytes to a flow before it goes on to the next. With --fq-rate it paces each flow to so many
// bit/s, and `sink` tells how far flows were from it. `ping-pong` sends --size bytes and waits until as many have come
// back; with --gap one connection waits so long before it sends again. One that waits for 3 s, or is lost, counts as an error,
// and ends the mode with one connection. With --socks connections go through the SOCKS5 server
// on this port of 127.0.0.1, without a password. `icmp` prints the time until it had the answer, and until the kernel had
// it (arrival): the difference is how long it waited for a processor. A request that has no answer counts as 1.5 s. No mode wakes up while nothing arrives.
//
// Far side:  sink source echo connect-echo hold icmp
// Peer:      send receive ping-pong connect idle
//
// Every mode ends by itself and prints one JSON object.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_EVENTS = 256,
    WRITE_SIZE = 128 << 10,
    READ_SIZE = 256 << 10,
    MAX_SAMPLES = 8000000,
    PING_GAP_US = 10000,
    MAX_PINGS = 1 << 20,
    // The last pings are waited for so long, and so long counts for one that is lost.
    PING_PATIENCE_NS = 1500000000,
    // A request has an answer after this time, or it is an error.
    PATIENCE_S = 3,
    // A far side waits this long for its peer to start, and after its end.
    GRACE_S = 25,
};

static struct {
    const char *mode, *target, *congestion;
    int port, flows, size, write_size, socks;
    double seconds, gap_ms;
    uint64_t fq_rate;
} args = {.target = "10.99.0.1", .port = 7001, .flows = 1, .size = 1, .write_size = WRITE_SIZE, .seconds = 5};

static char buffer[READ_SIZE];

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static double now_s(void) { return now_ns() / 1e9; }

static double cpu_s(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

// A field of /proc/self/status, KiB.
static long status_kb(const char *field) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long value = 0;
    size_t len = strlen(field);
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, field, len)) value = atol(line + len + 1);
    if (file) fclose(file);
    return value;
}

// --- latencies -------------------------------------------------------------------------------

static uint32_t *samples;
static int sample_count;
// Of pings: `samples` until the kernel had the answer.
static uint32_t arrivals[MAX_PINGS];

static void record(uint64_t ns) {
    if (!samples && !(samples = malloc(sizeof *samples * MAX_SAMPLES))) die("malloc");
    if (sample_count < MAX_SAMPLES) samples[sample_count++] = ns > UINT32_MAX ? UINT32_MAX : ns;
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double quantile_us(double q) { return samples[(int)((sample_count - 1) * q)] / 1e3; }

static void print_latencies(void) {
    printf("\"samples\":%d", sample_count);
    if (!sample_count) return;
    qsort(samples, sample_count, sizeof *samples, compare);
    printf(",\"min_us\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f", quantile_us(0),
           quantile_us(.5), quantile_us(.99), quantile_us(1));
}

// --- sockets ---------------------------------------------------------------------------------

static struct sockaddr_in address_of(const char *text, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, text, &a.sin_addr) != 1) {
        fprintf(stderr, "kb: %s is not an IPv4 address\n", text);
        exit(2);
    }
    return a;
}

static struct sockaddr_in target(void) { return address_of(args.target, args.port); }

static int tcp_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) die("socket");
    if (args.congestion &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, args.congestion, strlen(args.congestion)))
        die("TCP_CONGESTION");
    return fd;
}

static void set_nonblocking(int fd, int on) {
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

static void set_nodelay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int listen_socket(void) {
    int fd = tcp_socket(), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(args.port)};
    if (bind(fd, (void *)&a, sizeof a)) die("bind");
    if (listen(fd, 16384)) die("listen");
    set_nonblocking(fd, 1);
    return fd;
}

// Has a SOCKS5 server connect to the target (RFC 1928). Returns whether it did.
static int ask_socks(int fd) {
    struct sockaddr_in a = target();
    unsigned char hello[] = {5, 1, 0}, request[10] = {5, 1, 0, 1}, answer[10];
    memcpy(request + 4, &a.sin_addr, 4);
    memcpy(request + 8, &a.sin_port, 2);
    if (send(fd, hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) return 0;
    if (recv(fd, answer, 2, MSG_WAITALL) != 2 || answer[1]) return 0;
    return send(fd, request, sizeof request, MSG_NOSIGNAL) == sizeof request &&
           recv(fd, answer, sizeof answer, MSG_WAITALL) == sizeof answer && !answer[1];
}

// Tries for two seconds: the far side may still be starting.
static int connect_socket(void) {
    struct sockaddr_in a = args.socks ? address_of("127.0.0.1", args.socks) : target();
    for (int attempt = 0;; attempt++) {
        int fd = tcp_socket();
        if (!connect(fd, (void *)&a, sizeof a) && (!args.socks || ask_socks(fd))) return fd;
        if (attempt == 100) die("connect");
        close(fd);
        usleep(20000);
    }
}

static void watch(int epoll, int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl");
}

static void raise_file_limit(void) {
    struct rlimit r = {1 << 20, 1 << 20};
    if (!setrlimit(RLIMIT_NOFILE, &r)) return;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

// --- the far side ----------------------------------------------------------------------------

// Milliseconds until `end`, rounded up; 0 if it is past.
static int ms_until(double end) {
    double left = end - now_s();
    return left > 0 ? left * 1e3 + 1 : 0;
}

// Bytes read, in tenths of a second since the first.
static uint64_t bins[4096];

// Gbit/s from one second after the start to 0.3 s before the end.
static double steady_gbps(void) {
    int from = 10, to = args.seconds * 10 - 3;
    uint64_t sum = 0;
    for (int i = from; i < to && i < 4096; i++) sum += bins[i];
    return to > from ? sum * 8 / ((to - from) / 10.0) / 1e9 : 0;
}

enum { MAX_FLOWS = 8192, MAX_SECONDS = 64 };

// Bytes read of each descriptor, in seconds since the first byte of all.
static uint64_t by_flow[MAX_FLOWS][MAX_SECONDS];

static void count_flow(int fd, ssize_t bytes, double since_first) {
    int second = since_first;
    if (fd < MAX_FLOWS && second < MAX_SECONDS) by_flow[fd][second] += bytes;
}

// Jain's index of fairness over `flows` flows, of the bytes up to `seconds` after the first: 1 if all had the same
// number, 1/flows if one had everything.
static void print_jain(int flows, int seconds) {
    double sum = 0, squares = 0;
    for (int fd = 0; fd < MAX_FLOWS; fd++) {
        double bytes = 0;
        for (int s = 0; s < seconds && s < MAX_SECONDS; s++) bytes += by_flow[fd][s];
        sum += bytes;
        squares += bytes * bytes;
    }
    if (flows > 1 && squares) printf("\"jain\":%.4f,", sum * sum / squares / flows);
}

// How far `accepted` flows were from --fq-rate, percent: all together, the slowest flow over the whole time, and the worst
// second of any. One that brought nothing counts as all the others. The first second is slow start; that of the last flow
// begins later, as connections are made one after another.
static void print_rate_error(int accepted, int seconds) {
    double due = args.fq_rate / 8.0, sum = 0, worst = 0, slowest = 0;
    int flows = 0, from = 2 + accepted / 1000;
    if (seconds > MAX_SECONDS) seconds = MAX_SECONDS;
    if (from >= seconds) from = seconds - 1;
    if (accepted == 0 || from < 1) return;
    for (int f = 0; f < MAX_FLOWS; f++) {
        uint64_t bytes = 0, later = 0;
        for (int s = 0; s < seconds; s++) {
            if (s >= 1) bytes += by_flow[f][s];
            if (s >= from) later += by_flow[f][s];
        }
        if (!bytes && !by_flow[f][0]) continue;
        double error = later / due / (seconds - from) - 1;
        if (!flows || error < slowest) slowest = error;
        flows++;
        sum += bytes / due / (seconds - 1) - 1;
        for (int s = 1; s < seconds; s++) {
            error = by_flow[f][s] / due - 1;
            if (error * error > worst * worst) worst = error;
        }
    }
    if (flows < accepted) {
        sum -= accepted - flows;
        slowest = worst = -1;
    }
    printf("\"mean_percent\":%.4f,\"slowest_percent\":%.4f,\"worst_percent\":%.4f,", sum / accepted * 100, slowest * 100,
           worst * 100);
}

// Reads from everybody who connects, until the last has closed; from paced flows, which take long to send what they hold,
// for `seconds`.
static int sink(void) {
    int listener = listen_socket(), epoll = epoll_create1(0), open = 0, accepted = 0;
    struct epoll_event events[MAX_EVENTS];
    uint64_t bytes = 0;
    double start = now_s(), first = 0, last = 0;
    watch(epoll, listener, EPOLLIN);
    while (now_s() - start < args.seconds + GRACE_S) {
        double end = start + args.seconds + GRACE_S;
        if (accepted && !open) end = last + 0.2;
        if (args.fq_rate && first) end = first + args.seconds + 0.5;
        int n = epoll_wait(epoll, events, MAX_EVENTS, ms_until(end));
        if (accepted && !open && now_s() - last > 0.19) break;
        if (args.fq_rate && first && now_s() - first > args.seconds + 0.5) break;
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd, c;
            if (fd == listener) {
                for (; (c = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0; open++, accepted++)
                    watch(epoll, c, EPOLLIN);
                continue;
            }
            ssize_t r = recv(fd, buffer, sizeof buffer, 0);
            if (r < 0 && errno == EAGAIN) continue;
            last = now_s();
            if (r <= 0) {
                close(fd);
                open--;
                continue;
            }
            if (!first) first = last;
            bytes += r;
            int bin = (last - first) * 10;
            if (bin < 4096) bins[bin] += r;
            count_flow(fd, r, last - first);
        }
    }
    putchar('{');
    if (args.fq_rate) print_rate_error(accepted, args.seconds);
    print_jain(accepted, args.seconds);
    printf("\"bytes\":%lu,\"gbps\":%.4f,\"gbps_steady\":%.4f,\"flows\":%d}\n", bytes,
           last > first ? bytes * 8 / (last - first) / 1e9 : 0, steady_gbps(), accepted);
    return 0;
}

// Writes to everybody who connects, for `seconds` after the first.
static int source(void) {
    int listener = listen_socket(), epoll = epoll_create1(0), accepted = 0;
    struct epoll_event events[MAX_EVENTS];
    uint64_t bytes = 0;
    double start = now_s(), first = 0;
    watch(epoll, listener, EPOLLIN);
    while (first ? now_s() - first < args.seconds : now_s() - start < GRACE_S) {
        int n = epoll_wait(epoll, events, MAX_EVENTS, ms_until(first ? first + args.seconds : start + GRACE_S));
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd, c;
            if (fd == listener) {
                for (; (c = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0; accepted++)
                    watch(epoll, c, EPOLLOUT);
                if (!first) first = now_s();
                continue;
            }
            ssize_t r = send(fd, buffer, WRITE_SIZE, MSG_NOSIGNAL);
            if (r > 0)
                bytes += r;
            else if (errno != EAGAIN)
                close(fd);
        }
    }
    printf("{\"bytes\":%lu,\"flows\":%d}\n", bytes, accepted);
    return 0;
}

// Answers each read with the same bytes; with `once`, closes after the first.
static int echo(int once) {
    int listener = listen_socket(), epoll = epoll_create1(0);
    struct epoll_event events[MAX_EVENTS];
    uint64_t accepted = 0;
    double start = now_s();
    watch(epoll, listener, EPOLLIN);
    while (now_s() - start < args.seconds) {
        int n = epoll_wait(epoll, events, MAX_EVENTS, ms_until(start + args.seconds));
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd, c;
            if (fd == listener) {
                for (; (c = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0; accepted++) {
                    set_nodelay(c);
                    watch(epoll, c, EPOLLIN);
                }
                continue;
            }
            ssize_t r = recv(fd, buffer, sizeof buffer, 0);
            if (r > 0) send(fd, buffer, r, MSG_NOSIGNAL);
            if (r == 0 || (r > 0 && once) || (r < 0 && errno != EAGAIN)) close(fd);
        }
    }
    printf("{\"accepted\":%lu}\n", accepted);
    return 0;
}

// Accepts and holds until it is killed.
static int hold(void) {
    int listener = listen_socket();
    double end = now_s() + args.seconds;
    for (int left; (left = ms_until(end)) > 0;) {
        struct pollfd p = {listener, POLLIN, 0};
        poll(&p, 1, left);
        while (accept4(listener, 0, 0, 0) >= 0) continue;
    }
    return 0;
}

struct __attribute__((packed)) ping {
    struct icmphdr header;
    uint64_t sent_at;
};

static uint16_t checksum(const void *data, int bytes) {
    const uint16_t *words = data;
    uint32_t sum = 0;
    for (; bytes > 1; bytes -= 2) sum += *words++;
    sum = (sum >> 16) + (sum & 0xffff);
    return ~(sum + (sum >> 16));
}

static int send_ping(int fd, uint16_t id, uint16_t sequence) {
    struct sockaddr_in to = target();
    struct ping p = {.header = {.type = ICMP_ECHO}, .sent_at = now_ns()};
    to.sin_port = 0;
    p.header.un.echo.id = id;
    p.header.un.echo.sequence = htons(sequence);
    p.header.checksum = checksum(&p, sizeof p);
    return sendto(fd, &p, sizeof p, 0, (void *)&to, sizeof to) > 0;
}

static uint64_t real_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void receive_ping(int fd, uint16_t id) {
    char packet[2048], control[128];
    struct ping p;
    struct timespec stamp;
    struct iovec data = {packet, sizeof packet};
    struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t r = recvmsg(fd, &m, 0);
    uint64_t t = now_ns(), real = real_ns();
    int ip = (packet[0] & 15) * 4;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (r < ip + (ssize_t)sizeof p || !c || c->cmsg_type != SCM_TIMESTAMPNS) return;
    memcpy(&p, packet + ip, sizeof p);
    memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
    if (p.header.type != ICMP_ECHOREPLY || p.header.un.echo.id != id || sample_count == MAX_PINGS) return;
    uint64_t waited = real - (stamp.tv_sec * 1000000000ull + stamp.tv_nsec), took = t - p.sent_at;
    arrivals[sample_count] = took > waited ? took - waited : 0;
    record(took);
}

// Pings without an answer are among those that took longest.
static void record_lost(int lost) {
    for (; lost > 0 && sample_count < MAX_PINGS; lost--) {
        arrivals[sample_count] = PING_PATIENCE_NS;
        record(PING_PATIENCE_NS);
    }
}

static void print_arrivals(void) {
    if (!sample_count) return;
    qsort(arrivals, sample_count, sizeof *arrivals, compare);
    printf(",\"arrival_p50_us\":%.1f,\"arrival_p99_us\":%.1f", arrivals[sample_count / 2] / 1e3,
           arrivals[(int)((sample_count - 1) * .99)] / 1e3);
}

// Echo requests every 10 ms for `seconds`.
static int icmp(void) {
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), room = 4 << 20, sent = 0;
    if (fd < 0) die("raw socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    int one = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one)) die("SO_TIMESTAMPNS");
    uint16_t id = getpid(), sequence = 0;
    uint64_t next = now_ns(), end = next + args.seconds * 1e9, give_up = end + PING_PATIENCE_NS, t;
    while ((t = now_ns()) < give_up && !(t >= end && sample_count >= sent)) {
        if (t >= next && t < end) {
            sent += send_ping(fd, id, sequence++);
            next += PING_GAP_US * 1000ull;
        }
        int64_t wait = t < end ? (int64_t)(next - now_ns()) : 200000000;
        struct timespec ts = {0, wait < 0 ? 0 : wait};
        struct pollfd p = {fd, POLLIN, 0};
        if (ppoll(&p, 1, &ts, 0) > 0) receive_ping(fd, id);
    }
    int lost = sent - sample_count;
    record_lost(lost);
    printf("{\"sent\":%d,\"lost\":%d,", sent, lost);
    print_latencies();
    print_arrivals();
    printf("}\n");
    return 0;
}

// --- the peer --------------------------------------------------------------------------------

static int *connect_flows(int epoll, uint32_t events) {
    int *fds = calloc(args.flows, sizeof *fds);
    if (!fds) die("calloc");
    for (int i = 0; i < args.flows; i++) {
        fds[i] = connect_socket();
        set_nonblocking(fds[i], 1);
        if (args.fq_rate) {
            uint64_t rate = args.fq_rate / 8;
            if (setsockopt(fds[i], SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate)) die("SO_MAX_PACING_RATE");
        }
        watch(epoll, fds[i], events);
    }
    return fds;
}

// Writes up to --write bytes, or as many as the socket takes.
static int write_some(int fd) {
    int written = 0;
    while (written < args.write_size) {
        int left = args.write_size - written;
        ssize_t r = send(fd, buffer, left < WRITE_SIZE ? left : WRITE_SIZE, MSG_NOSIGNAL);
        if (r < 0 && errno != EAGAIN) die("send");
        if (r < 0) break;
        written += r;
    }
    return written;
}

static int send_flows(void) {
    int epoll = epoll_create1(0), *fds = connect_flows(epoll, EPOLLOUT);
    struct epoll_event events[MAX_EVENTS];
    uint64_t bytes = 0;
    double start = now_s();
    while (now_s() - start < args.seconds) {
        int n = epoll_wait(epoll, events, MAX_EVENTS, ms_until(start + args.seconds));
        for (int i = 0; i < n; i++) bytes += write_some(events[i].data.fd);
    }
    double seconds = now_s() - start;
    unsigned retransmits = 0;
    for (int i = 0; i < args.flows; i++) {
        struct tcp_info info = {0};
        socklen_t len = sizeof info;
        getsockopt(fds[i], IPPROTO_TCP, TCP_INFO, &info, &len);
        retransmits += info.tcpi_total_retrans;
        if (!args.fq_rate) shutdown(fds[i], SHUT_WR);
    }
    for (int i = 0; i < args.flows && !args.fq_rate; i++) {
        struct timeval limit = {10, 0};
        set_nonblocking(fds[i], 0);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        recv(fds[i], buffer, 1, 0);
    }
    printf("{\"bytes\":%lu,\"seconds\":%.3f,\"retransmits\":%u,\"peak_rss_kb\":%ld}\n", bytes,
           seconds, retransmits, status_kb("VmHWM"));
    return 0;
}

static int receive_flows(void) {
    int epoll = epoll_create1(0), over = 0;
    struct epoll_event events[MAX_EVENTS];
    uint64_t bytes = 0;
    connect_flows(epoll, EPOLLIN);
    double start = now_s();
    // Ends before the far side does.
    while (!over && now_s() - start < args.seconds - 0.2) {
        int n = epoll_wait(epoll, events, MAX_EVENTS, ms_until(start + args.seconds - 0.2));
        for (int i = 0; i < n; i++) {
            ssize_t r = recv(events[i].data.fd, buffer, sizeof buffer, 0);
            if (r > 0) bytes += r;
            if (r > 0) count_flow(events[i].data.fd, r, now_s() - start);
            if (r == 0) over = 1;
        }
    }
    double seconds = now_s() - start;
    putchar('{');
    print_jain(args.flows, args.seconds);
    printf("\"bytes\":%lu,\"seconds\":%.3f,\"gbps\":%.4f,\"peak_rss_kb\":%ld}\n", bytes, seconds,
           bytes * 8 / seconds / 1e9, status_kb("VmHWM"));
    return 0;
}

static void print_rate(double start, double cpu, int errors) {
    double seconds = now_s() - start;
    printf("{\"per_second\":%.0f,\"errors\":%d,\"cpu_us\":%.2f,", sample_count / seconds, errors,
           (cpu_s() - cpu) * 1e6 / sample_count);
    print_latencies();
    printf("}\n");
}

static int ping_pong(void) {
    int fd = connect_socket(), errors = 0;
    struct timeval limit = {PATIENCE_S, 0};
    set_nodelay(fd);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    double start = now_s(), cpu = cpu_s();
    while (!errors && now_s() - start < args.seconds) {
        uint64_t t = now_ns();
        errors = send(fd, buffer, args.size, MSG_NOSIGNAL) != args.size ||
                 recv(fd, buffer, args.size, MSG_WAITALL) != args.size;
        record(now_ns() - t);
        if (!errors && args.gap_ms) usleep(args.gap_ms * 1e3);
    }
    print_rate(start, cpu, errors);
    return 0;
}

// One request at a time on each of many connections.
static int ping_pong_many(void) {
    struct asked {
        uint64_t at;
        int missing;
    } *asked = calloc(1 << 20, sizeof *asked);
    int epoll = epoll_create1(0), *fds = connect_flows(epoll, EPOLLIN);
    struct epoll_event events[MAX_EVENTS];
    if (!asked) die("calloc");
    int errors = 0;
    double start = now_s(), cpu = cpu_s();
    for (int i = 0; i < args.flows; i++) {
        set_nodelay(fds[i]);
        asked[fds[i]] = (struct asked){now_ns(), args.size};
        if (send(fds[i], buffer, args.size, 0) != args.size) die("send");
    }
    while (now_s() - start < args.seconds) {
        int n = epoll_wait(epoll, events, MAX_EVENTS, ms_until(start + args.seconds));
        for (int i = 0; i < n; i++) {
            struct asked *a = &asked[events[i].data.fd];
            ssize_t r = recv(events[i].data.fd, buffer, a->missing, 0);
            if (r < 0 && errno == EAGAIN) continue;
            if (r <= 0) die("recv");
            if ((a->missing -= r)) continue;
            record(now_ns() - a->at);
            *a = (struct asked){now_ns(), args.size};
            // An empty send buffer takes all of it.
            if (send(events[i].data.fd, buffer, args.size, 0) != args.size) die("send");
        }
    }
    for (int i = 0; i < args.flows; i++) {
        uint64_t waited = now_ns() - asked[fds[i]].at;
        if (waited < PATIENCE_S * 1000000000ull) continue;
        record(waited);
        errors++;
    }
    print_rate(start, cpu, errors);
    return 0;
}

// Connects, sends a byte, gets a byte, waits for the far side's FIN, closes; again.
static int connect_close(void) {
    struct sockaddr_in a = target();
    double start = now_s();
    int errors = 0;
    while (now_s() - start < args.seconds) {
        uint64_t t = now_ns();
        int fd = tcp_socket();
        if (connect(fd, (void *)&a, sizeof a)) {
            errors++;
            close(fd);
            usleep(1000);
            continue;
        }
        set_nodelay(fd);
        if (send(fd, buffer, 1, MSG_NOSIGNAL) == 1 && recv(fd, buffer, 1, 0) == 1)
            record(now_ns() - t);
        else
            errors++;
        recv(fd, buffer, 1, 0);
        close(fd);
    }
    print_rate(start, 0, errors);
    return 0;
}

// Connects and sleeps.
static int idle(void) {
    long before = status_kb("VmRSS");
    for (int i = 0; i < args.flows; i++) connect_socket();
    sleep(1);
    printf("{\"flows\":%d,\"rss_bytes_per_flow\":%.0f}\n", args.flows,
           args.flows ? (status_kb("VmRSS") - before) * 1024.0 / args.flows : 0);
    fflush(stdout);
    usleep(args.seconds * 1e6);
    return 0;
}

static int run(void) {
    const char *m = args.mode;
    if (!strcmp(m, "sink")) return sink();
    if (!strcmp(m, "source")) return source();
    if (!strcmp(m, "echo")) return echo(0);
    if (!strcmp(m, "connect-echo")) return echo(1);
    if (!strcmp(m, "hold")) return hold();
    if (!strcmp(m, "icmp")) return icmp();
    if (!strcmp(m, "send")) return send_flows();
    if (!strcmp(m, "receive")) return receive_flows();
    if (!strcmp(m, "ping-pong")) return args.flows == 1 ? ping_pong() : ping_pong_many();
    if (!strcmp(m, "connect")) return connect_close();
    if (!strcmp(m, "idle")) return idle();
    fprintf(stderr, "kb: there is no mode %s\n", m);
    return 2;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"target", 1, 0, 't'},  {"port", 1, 0, 'p'},       {"flows", 1, 0, 'n'},
        {"seconds", 1, 0, 's'}, {"congestion", 1, 0, 'c'}, {"fq-rate", 1, 0, 'r'},
        {"size", 1, 0, 'z'},    {"write", 1, 0, 'w'},      {"socks", 1, 0, 'k'},
        {"gap", 1, 0, 'g'},     {0},
    };
    for (int o; (o = getopt_long(argc, argv, "", options, 0)) != -1;) {
        if (o == 't') args.target = optarg;
        else if (o == 'p') args.port = atoi(optarg);
        else if (o == 'z') args.size = atoi(optarg);
        else if (o == 'k') args.socks = atoi(optarg);
        else if (o == 'g') args.gap_ms = atof(optarg);
        else if (o == 'w') args.write_size = atoi(optarg);
        else if (o == 'n') args.flows = atoi(optarg);
        else if (o == 's') args.seconds = atof(optarg);
        else if (o == 'c') args.congestion = optarg;
        else if (o == 'r') args.fq_rate = strtoull(optarg, 0, 10);
        else return 2;
    }
    if (optind >= argc || args.flows < 0 || args.size < 1 || args.size > READ_SIZE || args.write_size < 1) {
        fprintf(stderr, "kb MODE [--target A] [--port P] [--flows N] [--seconds S] [--size BYTES]"
                        " [--write BYTES] [--congestion C] [--fq-rate BITS] [--socks PORT] [--gap MS]\n");
        return 2;
    }
    args.mode = argv[optind];
    raise_file_limit();
    signal(SIGPIPE, SIG_IGN);
    memset(buffer, 'x', sizeof buffer);
    alarm(args.seconds + 2 * GRACE_S);
    return run();
}
