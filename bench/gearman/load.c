/*
 * A load generator for Gearman servers on 127.0.0.1: one thread, one epoll loop.
 *
 * Written in C so that it is never what limits a server under test. It prints one line of JSON.
 *
 *   submit      clients keep background jobs in flight; measures acknowledgements
 *   cycle       the same, with workers: submit, grab, complete; measures completions. Clients stay
 *               at most --ahead jobs ahead of the workers, so that the queue neither grows nor dries
 *   drain       workers only, on jobs that are queued already
 *   foreground  clients submit a job and wait for its result, workers answer
 *
 * A worker holds one job at a time, sends the completion and the next grab in one write, and sleeps
 * (PRE_SLEEP, then NOOP) when there is none. As a completion has no answer of its own, it is
 * counted when the answer to what was sent behind it has come, so that no server can score with
 * packets that it has not read yet.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CAN_DO = 1,
    PRE_SLEEP = 4,
    NOOP = 6,
    SUBMIT_JOB = 7,
    JOB_CREATED = 8,
    GRAB_JOB = 9,
    NO_JOB = 10,
    JOB_ASSIGN = 11,
    WORK_COMPLETE = 13,
    ECHO_REQ = 16,
    ECHO_RES = 17,
    SUBMIT_JOB_BG = 18,
    ERROR = 19,
};

enum { HEADER = 12, KEY = 36, READ_SIZE = 1 << 18, MAX_HANDLE = 64, MAX_EVENTS = 256 };

typedef struct {
    int fd;
    bool is_worker;
    bool wants_write;       /* registered for EPOLLOUT */
    bool has_finished_job;  /* worker: a completion is on its way and not yet answered for */
    char *in;
    size_t in_len, in_size;
    char *out;
    size_t out_len, out_done, out_size;
    uint64_t *sent_at; /* client: ring of submission times, oldest first */
    unsigned oldest, in_flight;
} Connection;

static struct {
    const char *mode, *function;
    int port, clients, workers;
    unsigned in_flight;
    size_t payload;
    uint64_t jobs, ahead, seed;
    double seconds;
} options = {
    .mode = "cycle",
    .function = "bench",
    .clients = 4,
    .workers = 4,
    .in_flight = 16,
    .payload = 100,
    .jobs = 20000,
    .ahead = 256,
    .seconds = 10,
};

static bool submits, is_foreground, is_cycle;
static uint64_t submitted, acknowledged, completed, to_grab;
static uint64_t *latencies;
static uint64_t latency_count;
static char *payload;
static int epoll;

static void die(const char *what)
{
    if (errno)
        fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    else
        fprintf(stderr, "load: %s\n", what);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A bijection of 64-bit numbers: different counts give different keys that look random. */
static uint64_t scramble(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* What libgearman sends when no key is given has the shape of a UUID. */
static void write_key(char *to, uint64_t count)
{
    static const char hex[] = "0123456789abcdef";
    uint64_t halves[2];
    int digit = 0;
    halves[0] = scramble(count + options.seed);
    halves[1] = scramble(halves[0]);
    for (int i = 0; i < KEY; i++) {
        if (i == 8 || i == 13 || i == 18 || i == 23) {
            to[i] = '-';
        } else {
            to[i] = hex[(halves[digit / 16] >> (digit % 16 * 4)) & 15];
            digit++;
        }
    }
}

static void put_u32(char *to, uint32_t value)
{
    value = htonl(value);
    memcpy(to, &value, 4);
}

static uint32_t get_u32(const char *from)
{
    uint32_t value;
    memcpy(&value, from, 4);
    return ntohl(value);
}

/* Append the header of a request and make room for its body; returns where the body goes. */
static char *begin(Connection *c, uint32_t kind, size_t size)
{
    char *at;
    if (c->out_len + HEADER + size > c->out_size) {
        c->out_size = (c->out_len + HEADER + size) * 2;
        c->out = realloc(c->out, c->out_size);
        if (!c->out)
            die("out of memory");
    }
    at = c->out + c->out_len;
    memcpy(at, "\0REQ", 4);
    put_u32(at + 4, kind);
    put_u32(at + 8, (uint32_t)size);
    c->out_len += HEADER + size;
    return at + HEADER;
}

static void flush(Connection *c)
{
    struct epoll_event event = {.data.ptr = c};
    bool is_stuck;
    while (c->out_done < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_done, c->out_len - c->out_done, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN)
                break;
            if (errno != EINTR)
                die("send");
        } else {
            c->out_done += (size_t)n;
        }
    }
    is_stuck = c->out_done < c->out_len;
    if (!is_stuck)
        c->out_done = c->out_len = 0;
    if (is_stuck != c->wants_write) {
        event.events = EPOLLIN | (is_stuck ? EPOLLOUT : 0);
        if (epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event) < 0)
            die("epoll_ctl");
        c->wants_write = is_stuck;
    }
}

/*
 * Fill the client's window, as soon as all of it is allowed: with one job for each completion every
 * job would have a write of its own. The time is read once for all jobs of a write.
 */
static void submit_more(Connection *c)
{
    size_t name = strlen(options.function);
    uint64_t now = now_ns();
    if (is_cycle && submitted + options.in_flight - c->in_flight > completed + options.ahead)
        return;
    while (c->in_flight < options.in_flight && submitted < options.jobs) {
        char *at = begin(c, is_foreground ? SUBMIT_JOB : SUBMIT_JOB_BG,
                         name + 1 + KEY + 1 + options.payload);
        memcpy(at, options.function, name + 1);
        write_key(at + name + 1, submitted);
        at[name + 1 + KEY] = '\0';
        memcpy(at + name + 1 + KEY + 1, payload, options.payload);
        c->sent_at[(c->oldest + c->in_flight) % options.in_flight] = now;
        c->in_flight++;
        submitted++;
    }
}

static void note_answer(Connection *c)
{
    if (!c->in_flight)
        die("an answer to nothing");
    latencies[latency_count++] = now_ns() - c->sent_at[c->oldest];
    c->oldest = (c->oldest + 1) % options.in_flight;
    c->in_flight--;
    acknowledged++;
}

/* Ask for the next job, or, when enough have been asked for, for an echo to count the last by. */
static void grab_or_rest(Connection *c)
{
    if (to_grab) {
        to_grab--;
        begin(c, GRAB_JOB, 0);
    } else if (c->has_finished_job) {
        begin(c, ECHO_REQ, 0);
    }
}

static void count_completion(Connection *c)
{
    completed += c->has_finished_job;
    c->has_finished_job = false;
}

static void handle_for_worker(Connection *c, uint32_t kind, const char *body, size_t size)
{
    size_t handle;
    char *at;
    switch (kind) {
    case JOB_ASSIGN:
        count_completion(c);
        handle = strnlen(body, size);
        if (handle >= MAX_HANDLE)
            die("a handle of more than 63 bytes");
        at = begin(c, WORK_COMPLETE, handle + 1 + 2);
        memcpy(at, body, handle);
        memcpy(at + handle, "\0ok", 3);
        c->has_finished_job = true;
        grab_or_rest(c);
        break;
    case NO_JOB:
        count_completion(c);
        to_grab++;
        begin(c, PRE_SLEEP, 0);
        break;
    case NOOP:
        grab_or_rest(c);
        break;
    case ECHO_RES:
        count_completion(c);
        break;
    default:
        errno = 0;
        die("a packet that no worker expects");
    }
}

static void handle_for_client(Connection *c, uint32_t kind)
{
    if (kind == JOB_CREATED) {
        if (!is_foreground)
            note_answer(c);
    } else if (kind == WORK_COMPLETE && is_foreground) {
        note_answer(c);
    } else {
        errno = 0;
        die("a packet that no client expects");
    }
}

static void handle_packets(Connection *c)
{
    size_t at = 0;
    while (c->in_len - at >= HEADER) {
        uint32_t kind = get_u32(c->in + at + 4);
        size_t size = get_u32(c->in + at + 8);
        errno = 0;
        if (memcmp(c->in + at, "\0RES", 4))
            die("not a response");
        if (HEADER + size > c->in_size)
            die("a response larger than the read buffer");
        if (c->in_len - at < HEADER + size)
            break;
        if (kind == ERROR) {
            fprintf(stderr, "load: the server said %.*s\n", (int)size, c->in + at + HEADER);
            exit(1);
        }
        if (c->is_worker)
            handle_for_worker(c, kind, c->in + at + HEADER, size);
        else
            handle_for_client(c, kind);
        at += HEADER + size;
    }
    memmove(c->in, c->in + at, c->in_len - at);
    c->in_len -= at;
    if (!c->is_worker)
        submit_more(c);
    flush(c);
}

static void read_from(Connection *c)
{
    ssize_t n = recv(c->fd, c->in + c->in_len, c->in_size - c->in_len, 0);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return;
        die("recv");
    }
    if (n == 0) {
        errno = 0;
        die("the server closed the connection");
    }
    c->in_len += (size_t)n;
    handle_packets(c);
}

/* Connect, introduce the worker, and wait for an echo: the clock starts when all are known. */
static void open_connection(Connection *c, bool is_worker)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    char answer[HEADER];
    size_t name = strlen(options.function);
    int one = 1;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->is_worker = is_worker;
    c->in_size = READ_SIZE + options.payload;
    c->in = malloc(c->in_size);
    c->sent_at = calloc(options.in_flight, sizeof *c->sent_at);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!c->in || !c->sent_at || c->fd < 0)
        die("socket");
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (is_worker)
        memcpy(begin(c, CAN_DO, name), options.function, name);
    begin(c, ECHO_REQ, 0);
    if (send(c->fd, c->out, c->out_len, MSG_NOSIGNAL) != (ssize_t)c->out_len)
        die("send");
    c->out_len = 0;
    if (recv(c->fd, answer, sizeof answer, MSG_WAITALL) != sizeof answer)
        die("no echo");
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK) < 0)
        die("fcntl");
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event) < 0)
        die("epoll_ctl");
}

/* Completions have made room: let clients go on, another one first each time. */
static void resume_clients(Connection *clients, int count)
{
    static int first;
    for (int i = 0; i < count; i++) {
        Connection *c = &clients[(first + i) % count];
        if (c->in_flight < options.in_flight) {
            submit_more(c);
            flush(c);
        }
    }
    first = (first + 1) % count;
}

static bool is_finished(void)
{
    if (submits && acknowledged < options.jobs)
        return false;
    return !options.workers || completed >= options.jobs;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_us(double part)
{
    if (!latency_count)
        return 0;
    return (double)latencies[(uint64_t)(part * (double)(latency_count - 1))] / 1000;
}

static void read_options(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--mode"))
            options.mode = value;
        else if (!strcmp(name, "--port"))
            options.port = atoi(value);
        else if (!strcmp(name, "--clients"))
            options.clients = atoi(value);
        else if (!strcmp(name, "--workers"))
            options.workers = atoi(value);
        else if (!strcmp(name, "--in-flight"))
            options.in_flight = (unsigned)atoi(value);
        else if (!strcmp(name, "--payload"))
            options.payload = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--jobs"))
            options.jobs = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--ahead"))
            options.ahead = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--seconds"))
            options.seconds = atof(value);
        else if (!strcmp(name, "--function"))
            options.function = value;
        else
            die("unknown option");
    }
    if (argc % 2 == 0)
        die("an option without its value");
    is_foreground = !strcmp(options.mode, "foreground");
    is_cycle = !strcmp(options.mode, "cycle");
    submits = strcmp(options.mode, "drain") != 0;
    if (!submits)
        options.clients = 0;
    else if (!strcmp(options.mode, "submit"))
        options.workers = 0;
    else if (!is_cycle && !is_foreground)
        die("unknown mode");
    /* Results come in any order, so a client that waits for them has one job at a time. */
    if (is_foreground)
        options.in_flight = 1;
    if (options.port < 1 || options.port > 65535 || options.clients < 0 || options.workers < 0 ||
        options.in_flight < 1 || options.jobs < 1 || options.ahead < options.in_flight || options.clients + options.workers < 1)
        die("an option is missing or out of range");
}

int main(int argc, char **argv)
{
    struct epoll_event events[MAX_EVENTS];
    Connection *connections;
    uint64_t start, end;
    double cpu_start, cpu, elapsed;
    int count;

    read_options(argc, argv);
    count = options.clients + options.workers;
    options.seed = scramble(now_ns() ^ ((uint64_t)getpid() << 40));
    to_grab = options.jobs;
    payload = malloc(options.payload + 1);
    latencies = malloc((submits ? options.jobs : 1) * sizeof *latencies);
    connections = calloc((size_t)count, sizeof *connections);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!payload || !latencies || !connections || epoll < 0)
        die("set-up");
    memset(payload, 'x', options.payload);
    for (int i = 0; i < count; i++)
        open_connection(&connections[i], i < options.workers);

    cpu_start = cpu_seconds();
    start = end = now_ns();
    for (int i = 0; i < count; i++) {
        if (connections[i].is_worker)
            grab_or_rest(&connections[i]);
        else
            submit_more(&connections[i]);
        flush(&connections[i]);
    }
    while (!is_finished() && (double)(end - start) < options.seconds * 1e9) {
        int ready = epoll_wait(epoll, events, MAX_EVENTS, 100);
        if (ready < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT)
                flush(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                read_from(c);
        }
        if (is_cycle && options.clients)
            resume_clients(connections + options.workers, options.clients);
        end = now_ns();
    }
    cpu = cpu_seconds() - cpu_start;
    elapsed = (double)(end - start) / 1e9;

    uint64_t jobs = !options.workers || is_foreground ? acknowledged : completed;
    qsort(latencies, latency_count, sizeof *latencies, by_size);
    printf("{\"mode\": \"%s\", \"jobs\": %llu, \"submitted\": %llu, \"acknowledged\": %llu, "
           "\"seconds\": %.6f, \"jobs_per_second\": %.1f, \"ack_p50_us\": %.1f, "
           "\"ack_p99_us\": %.1f, \"ack_max_us\": %.1f, \"cpu_seconds\": %.6f, "
           "\"out_of_time\": %s}\n",
           options.mode, (unsigned long long)jobs, (unsigned long long)submitted,
           (unsigned long long)acknowledged, elapsed, (double)jobs / elapsed, percentile_us(0.5),
           percentile_us(0.99), percentile_us(1), cpu, is_finished() ? "false" : "true");
    return 0;
}
