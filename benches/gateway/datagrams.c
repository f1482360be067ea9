// Datagrams for the benchmark of gateways.
//
//   datagrams echo ADDRESS PORT              sends each datagram back, until it is killed
//   datagrams probe ADDRESS PORT SECONDS     a datagram every 10 ms, and how long its answer took; 1 s if there was none
//   datagrams ports ADDRESS PORT             tells each who asks the port that it sees of him, until it is killed
//   datagrams mappings ADDRESS PORT COUNT    as many sockets, each of which asks that twice: the second time when all
//                                            have asked once
//   datagrams station ADDRESS PORT           counts what is sent to it, and sends what it is asked for, until it is killed
//   datagrams out|in ADDRESS PORT SECONDS MBIT LENGTH [joined]    datagrams to a station, or from it, at a rate
//
// With `joined` senders and receivers use super-datagrams, as programs of QUIC do (UDP_SEGMENT, UDP_GRO).
//
// `probe`, `mappings`, `out` and `in` print one JSON object.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    GAP_NS = 10000000,
    // The last answers are waited for so long, and so long counts for one that is lost.
    GRACE_NS = 1000000000,
    MAX_PROBES = 1 << 16,
    // Sockets that ask at the same time; how long one waits for its answer, and how often it asks.
    TOGETHER = 32,
    PATIENCE_MS = 500,
    TRIES = 3,
    // Datagrams of one call, or super-datagrams, and what a receiver's buffer holds: it is not what is measured.
    BATCH = 32,
    ROOM = 64 << 20,
    MAX_LENGTH = 65507,
    // The end of a flood is said so often: ends are lost, too.
    ENDS = 20,
    QUIET_NS = 300000000,
};

// The first bytes of each datagram of a flood. Data is what is neither asked nor answered.
enum { DATA = 1, BEGIN, COUNT, SEND, END };
struct head {
    uint32_t kind;
    uint32_t length;
    double seconds, mbit;
    uint64_t count, is_joined;
};

static struct sockaddr_in peer;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int udp_socket(void) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), room = 4 << 20;
    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    return fd;
}

static int large_socket(void) {
    int fd = udp_socket(), room = ROOM;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    return fd;
}

// Has a socket send super-datagrams of this length, or datagrams with 0.
static void join_sent(int fd, int length) {
    if (setsockopt(fd, SOL_UDP, UDP_SEGMENT, &length, sizeof length)) die("UDP_SEGMENT");
}

static void join_received(int fd, int is_joined) {
    if (setsockopt(fd, SOL_UDP, UDP_GRO, &is_joined, sizeof is_joined)) die("UDP_GRO");
}

// How many datagrams of this length so many bytes are.
static uint64_t datagrams_in(ssize_t bytes, uint32_t length) {
    return length ? (bytes + length - 1) / length : 1;
}

// Sends at a rate. Returns how many were sent.
static uint64_t flood(int fd, struct sockaddr_in *to, struct head wanted) {
    static char data[MAX_LENGTH];
    struct head head = {.kind = DATA};
    uint64_t each = wanted.is_joined ? MAX_LENGTH / wanted.length : 1;
    for (uint64_t i = 0; i < each; i++) memcpy(data + i * wanted.length, &head, sizeof head);
    struct iovec part = {data, each * wanted.length};
    struct mmsghdr messages[BATCH] = {0};
    for (int i = 0; i < BATCH; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_name = to, .msg_namelen = sizeof *to, .msg_iov = &part, .msg_iovlen = 1};
    double per_ns = wanted.mbit / 8e3 / wanted.length;
    int64_t start = now_ns(), t;
    uint64_t sent = 0;
    if (wanted.is_joined) join_sent(fd, wanted.length);
    while ((t = now_ns() - start) < wanted.seconds * 1e9) {
        uint64_t due = t * per_ns;
        if (due < sent + each) {
            nanosleep(&(struct timespec){0, 50000}, 0);
            continue;
        }
        uint64_t messages_due = (due - sent) / each;
        int r = sendmmsg(fd, messages, messages_due < BATCH ? messages_due : BATCH, 0);
        sent += r > 0 ? r * each : 0;
    }
    join_sent(fd, 0);
    return sent;
}

static _Noreturn void station(void) {
    static char data[MAX_LENGTH];
    uint64_t count = 0;
    uint32_t each = 0;
    int fd = large_socket();
    if (bind(fd, (void *)&peer, sizeof peer)) die("bind");
    for (;;) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        struct head head;
        ssize_t bytes = recvfrom(fd, data, sizeof data, 0, (void *)&from, &length);
        if (bytes < (ssize_t)sizeof head) continue;
        memcpy(&head, data, sizeof head);
        if (head.kind == DATA) count += datagrams_in(bytes, each);
        if (head.kind == BEGIN) {
            count = 0;
            each = head.length;
            join_received(fd, head.is_joined);
        }
        if (head.kind == COUNT) {
            head.count = count;
            sendto(fd, &head, sizeof head, 0, (void *)&from, length);
        }
        if (head.kind == SEND && head.length >= sizeof head && head.length <= MAX_LENGTH) {
            struct head end = {.kind = END, .count = flood(fd, &from, head)};
            for (int i = 0; i < ENDS; i++) {
                sendto(fd, &end, sizeof end, 0, (void *)&from, length);
                nanosleep(&(struct timespec){0, 10000000}, 0);
            }
        }
    }
}

// Waits for a datagram. Returns whether one came.
static int wait_ns(int fd, int64_t ns) {
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec ts = {ns / 1000000000, ns % 1000000000};
    return ppoll(&p, 1, &ts, 0) > 0;
}

static int station_out(struct head wanted) {
    int fd = large_socket();
    struct head head = wanted;
    head.kind = BEGIN;
    for (int i = 0; i < 3; i++) sendto(fd, &head, sizeof head, 0, (void *)&peer, sizeof peer);
    nanosleep(&(struct timespec){0, 100000000}, 0);
    int64_t start = now_ns();
    uint64_t sent = flood(fd, &peer, wanted);
    double seconds = (now_ns() - start) / 1e9;
    uint64_t received = 0;
    // What is on its way is counted, too: until the count stays.
    for (int quiet = 0; quiet < 2;) {
        nanosleep(&(struct timespec){0, QUIET_NS}, 0);
        head.kind = COUNT;
        sendto(fd, &head, sizeof head, 0, (void *)&peer, sizeof peer);
        if (!wait_ns(fd, QUIET_NS) || recv(fd, &head, sizeof head, 0) != sizeof head) {
            quiet++;
            continue;
        }
        quiet = head.count == received ? quiet + 1 : 0;
        received = head.count;
    }
    printf("{\"sent\":%lu,\"received\":%lu,\"seconds\":%.3f}\n", sent, received, seconds);
    return 0;
}

static int station_in(struct head wanted) {
    static char data[MAX_LENGTH];
    int fd = large_socket();
    struct head head;
    uint64_t received = 0, sent = 0;
    wanted.kind = SEND;
    if (wanted.is_joined) join_received(fd, 1);
    sendto(fd, &wanted, sizeof wanted, 0, (void *)&peer, sizeof peer);
    while (!sent && wait_ns(fd, QUIET_NS + wanted.seconds * 1e9)) {
        ssize_t bytes = recv(fd, data, sizeof data, 0);
        if (bytes < (ssize_t)sizeof head) continue;
        memcpy(&head, data, sizeof head);
        if (head.kind == DATA) received += datagrams_in(bytes, wanted.length);
        if (head.kind == END) sent = head.count;
    }
    printf("{\"sent\":%lu,\"received\":%lu,\"seconds\":%.3f}\n", sent, received, wanted.seconds);
    return 0;
}

static _Noreturn void echo(void) {
    char data[65536];
    int fd = udp_socket();
    if (bind(fd, (void *)&peer, sizeof peer)) die("bind");
    for (;;) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        ssize_t r = recvfrom(fd, data, sizeof data, 0, (void *)&from, &length);
        if (r >= 0) sendto(fd, data, r, 0, (void *)&from, length);
    }
}

// A question for the port that the server sees, which is 0 then, and its answer. An answer that came late is known by
// its round.
struct question {
    uint32_t round, port;
};

static _Noreturn void ports(void) {
    struct question question;
    int fd = udp_socket();
    if (bind(fd, (void *)&peer, sizeof peer)) die("bind");
    for (;;) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        if (recvfrom(fd, &question, sizeof question, 0, (void *)&from, &length) != sizeof question) continue;
        question.port = ntohs(from.sin_port);
        sendto(fd, &question, sizeof question, 0, (void *)&from, length);
    }
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int probe(double seconds) {
    static int64_t took[MAX_PROBES];
    int fd = udp_socket(), sent = 0, count = 0;
    if (connect(fd, (void *)&peer, sizeof peer)) die("connect");
    int64_t next = now_ns(), end = next + seconds * 1e9, t;
    while ((t = now_ns()) < end + GRACE_NS && !(t >= end && count == sent) && sent < MAX_PROBES) {
        if (t >= next && t < end) {
            sent += send(fd, &t, sizeof t, 0) == sizeof t;
            next += GAP_NS;
        }
        int64_t wait = (t < end ? next : end + GRACE_NS) - now_ns();
        struct timespec ts = {wait / 1000000000, wait % 1000000000};
        struct pollfd p = {fd, POLLIN, 0};
        if (wait <= 0 || ppoll(&p, 1, &ts, 0) <= 0) continue;
        int64_t stamp;
        if (recv(fd, &stamp, sizeof stamp, 0) == sizeof stamp && count < MAX_PROBES) took[count++] = now_ns() - stamp;
    }
    int lost = sent - count;
    while (count < sent) took[count++] = GRACE_NS;
    double sum = 0;
    for (int i = 0; i < count; i++) sum += took[i];
    qsort(took, count, sizeof *took, compare);
    printf("{\"sent\":%d,\"lost\":%d", sent, lost);
    if (count)
        printf(",\"mean_us\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f", sum / count / 1e3, took[count / 2] / 1e3,
               took[(int)((count - 1) * .99)] / 1e3);
    printf("}\n");
    return 0;
}

// Lets sockets ask until each has its answer, a port; 0 stays where there was none. Returns how many have one.
static int ask(int *sockets, int count, uint32_t round, uint32_t *seen) {
    int answered = 0;
    for (int try = 0; try < TRIES && answered < count; try++) {
        for (int i = 0; i < count; i++)
            if (!seen[i]) send(sockets[i], &(struct question){.round = round}, sizeof(struct question), 0);
        int64_t end = now_ns() + PATIENCE_MS * 1000000ll;
        for (int i = 0; i < count; i++) {
            while (!seen[i]) {
                struct question answer;
                int64_t left = end - now_ns();
                if (!wait_ns(sockets[i], left > 0 ? left : 0)) break;
                if (recv(sockets[i], &answer, sizeof answer, 0) != sizeof answer || answer.round != round) continue;
                seen[i] = answer.port;
                answered++;
            }
        }
    }
    return answered;
}

static int mappings(int count) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    int *sockets = calloc(count, sizeof *sockets), answered[2] = {0}, kept = 0;
    uint32_t *seen[2] = {calloc(count, sizeof **seen), calloc(count, sizeof **seen)};
    for (int i = 0; i < count; i++) {
        sockets[i] = udp_socket();
        if (connect(sockets[i], (void *)&peer, sizeof peer)) die("connect");
    }
    int64_t start = now_ns();
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < count; i += TOGETHER)
            answered[round] += ask(sockets + i, count - i < TOGETHER ? count - i : TOGETHER, round, seen[round] + i);
    // A mapping that was lost and made anew has another port.
    for (int i = 0; i < count; i++) kept += seen[0][i] && seen[0][i] == seen[1][i];
    printf("{\"wanted\":%d,\"first\":%d,\"again\":%d,\"kept\":%d,\"seconds\":%.2f}\n", count, answered[0], answered[1],
           kept, (now_ns() - start) / 1e9);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4 || !inet_aton(argv[2], &peer.sin_addr)) {
        fprintf(stderr, "datagrams echo|ports|station|probe|mappings|out|in ADDRESS PORT [SECONDS|COUNT] [MBIT LENGTH] [joined]\n");
        return 2;
    }
    peer.sin_family = AF_INET;
    peer.sin_port = htons(atoi(argv[3]));
    struct head wanted = {0};
    if (argc > 6) {
        wanted = (struct head){.seconds = atof(argv[4]), .mbit = atof(argv[5]), .length = atoi(argv[6])};
        if (wanted.length < sizeof wanted || wanted.length > MAX_LENGTH) {
            fprintf(stderr, "datagrams: a length is %zu to %d bytes\n", sizeof wanted, MAX_LENGTH);
            return 2;
        }
        wanted.is_joined = argc > 7 && !strcmp(argv[7], "joined");
        if (!strcmp(argv[1], "out")) return station_out(wanted);
        if (!strcmp(argv[1], "in")) return station_in(wanted);
    }
    if (!strcmp(argv[1], "echo")) echo();
    if (!strcmp(argv[1], "ports")) ports();
    if (!strcmp(argv[1], "station")) station();
    if (!strcmp(argv[1], "probe") && argc > 4) return probe(atof(argv[4]));
    if (!strcmp(argv[1], "mappings") && argc > 4) return mappings(atoi(argv[4]));
    fprintf(stderr, "datagrams: there is no mode %s\n", argv[1]);
    return 2;
}
