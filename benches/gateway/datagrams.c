// Datagrams for the benchmark of gateways.
//
//   datagrams echo ADDRESS PORT              sends each datagram back, until it is killed
//   datagrams probe ADDRESS PORT SECONDS     a datagram every 10 ms, and how long its answer took
//   datagrams mappings ADDRESS PORT COUNT    as many sockets, each of which asks twice: the second time when all have
//                                            asked once
//
// `probe` and `mappings` print one JSON object.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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
    // The last answers are waited for so long.
    GRACE_NS = 1000000000,
    MAX_PROBES = 1 << 16,
    // Sockets that ask at the same time; how long one waits for its answer, and how often it asks.
    TOGETHER = 32,
    PATIENCE_MS = 500,
    TRIES = 3,
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

static int echo(void) {
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
    double sum = 0;
    for (int i = 0; i < count; i++) sum += took[i];
    qsort(took, count, sizeof *took, compare);
    printf("{\"sent\":%d,\"lost\":%d", sent, sent - count);
    if (count)
        printf(",\"mean_us\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f", sum / count / 1e3, took[count / 2] / 1e3,
               took[(int)((count - 1) * .99)] / 1e3);
    printf("}\n");
    return 0;
}

// Lets sockets ask until each has its answer. Returns how many have one.
static int ask(int *sockets, int count) {
    char data[16];
    int answered = 0;
    char has_answer[TOGETHER] = {0};
    for (int try = 0; try < TRIES && answered < count; try++) {
        for (int i = 0; i < count; i++)
            if (!has_answer[i]) send(sockets[i], "ask", 3, 0);
        int64_t end = now_ns() + PATIENCE_MS * 1000000ll;
        for (int i = 0; i < count; i++) {
            struct pollfd p = {sockets[i], POLLIN, 0};
            int64_t left = (end - now_ns()) / 1000000;
            if (has_answer[i] || poll(&p, 1, left > 0 ? left : 0) <= 0) continue;
            if (recv(sockets[i], data, sizeof data, 0) != 3) continue;
            has_answer[i] = 1;
            answered++;
        }
    }
    return answered;
}

static int mappings(int count) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    int *sockets = calloc(count, sizeof *sockets), answered[2] = {0};
    for (int i = 0; i < count; i++) {
        sockets[i] = udp_socket();
        if (connect(sockets[i], (void *)&peer, sizeof peer)) die("connect");
    }
    int64_t start = now_ns();
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < count; i += TOGETHER)
            answered[round] += ask(sockets + i, count - i < TOGETHER ? count - i : TOGETHER);
    printf("{\"wanted\":%d,\"first\":%d,\"again\":%d,\"seconds\":%.2f}\n", count, answered[0], answered[1],
           (now_ns() - start) / 1e9);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4 || !inet_aton(argv[2], &peer.sin_addr)) {
        fprintf(stderr, "datagrams echo|probe|mappings ADDRESS PORT [SECONDS|COUNT]\n");
        return 2;
    }
    peer.sin_family = AF_INET;
    peer.sin_port = htons(atoi(argv[3]));
    if (!strcmp(argv[1], "echo")) return echo();
    if (!strcmp(argv[1], "probe") && argc > 4) return probe(atof(argv[4]));
    if (!strcmp(argv[1], "mappings") && argc > 4) return mappings(atoi(argv[4]));
    fprintf(stderr, "datagrams: there is no mode %s\n", argv[1]);
    return 2;
}
