/* Load for HTTP and Redis servers: prepared requests over some connections, one in flight on each.
 *
 *   load PORT CONNECTIONS REPLIES < requests > answers
 *
 * Standard input is a sequence of requests, standard output the sequence of their answers as they
 * came, each behind its length (4 bytes, this machine's order). An answer is one of HTTP with a
 * Content-Length if REPLIES is 0, else so many replies of Redis that are a bulk string or a line.
 * All is read before the clock starts and written after it stops; the seconds go to standard error.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 256

typedef struct {
    int fd;
    char *data;
    size_t used, room;
} Peer;

typedef struct {
    char *data;
    size_t used, room;
} Text;

static void fail(const char *why)
{
    perror(why);
    exit(1);
}

static void make_room(char **data, size_t *room, size_t wanted)
{
    if (wanted <= *room) return;
    while (*room < wanted) *room = *room ? *room * 2 : 65536;
    *data = realloc(*data, *room);
    if (!*data) fail("realloc");
}

static void append(Text *text, const void *from, size_t count)
{
    make_room(&text->data, &text->room, text->used + count);
    memcpy(text->data + text->used, from, count);
    text->used += count;
}

/* The size of a whole answer of HTTP at the start of the data, or 0. */
static size_t http_size(const char *data, size_t used)
{
    const char *end = memmem(data, used, "\r\n\r\n", 4);
    if (!end) return 0;
    const char *length = memmem(data, end - data, "content-length: ", 16);
    if (!length) {
        fprintf(stderr, "an answer without Content-Length\n");
        exit(1);
    }
    size_t total = end - data + 4 + strtoul(length + 16, NULL, 10);
    return used >= total ? total : 0;
}

static size_t redis_size(const char *data, size_t used, int replies)
{
    size_t at = 0;
    while (replies--) {
        const char *end = at < used ? memmem(data + at, used - at, "\r\n", 2) : NULL;
        if (!end) return 0;
        size_t next = end - data + 2;
        if (data[at] == '$') next += strtoul(data + at + 1, NULL, 10) + 2;
        if (used < next) return 0;
        at = next;
    }
    return at;
}

static void send_whole(int fd, const char *data, size_t count)
{
    while (count) {
        ssize_t sent = send(fd, data, count, MSG_NOSIGNAL);
        if (sent < 0) fail("send");
        data += sent;
        count -= sent;
    }
}

static Text requests, answers;
static size_t next; /* the place of the next request */
static int waiting; /* connections with a request in flight */

static void go_on(Peer *peer)
{
    uint32_t size;
    if (next >= requests.used) return;
    memcpy(&size, requests.data + next, sizeof size);
    send_whole(peer->fd, requests.data + next + sizeof size, size);
    next += sizeof size + size;
    waiting++;
}

int main(int count, char **words)
{
    if (count != 4) {
        fprintf(stderr, "load PORT CONNECTIONS REPLIES\n");
        return 2;
    }
    int connections = atoi(words[2]), replies = atoi(words[3]);
    if (connections < 1 || connections > CONNECTIONS_MAX) return 2;

    static char chunk[1 << 20];
    for (ssize_t got; (got = read(0, chunk, sizeof chunk)) > 0;) append(&requests, chunk, got);
    make_room(&answers.data, &answers.room, requests.used * 4 + (1 << 20));
    memset(answers.data, 0, answers.room); /* so that its pages are there */

    Peer peers[CONNECTIONS_MAX] = {0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int poll = epoll_create1(0), one = 1;
    for (int at = 0; at < connections; at++) {
        Peer *peer = &peers[at];
        peer->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(peer->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
        setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = at};
        epoll_ctl(poll, EPOLL_CTL_ADD, peer->fd, &event);
        make_room(&peer->data, &peer->room, 1 << 20);
    }

    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int at = 0; at < connections; at++) go_on(&peers[at]);
    while (waiting) {
        struct epoll_event events[CONNECTIONS_MAX];
        int ready = epoll_wait(poll, events, CONNECTIONS_MAX, 60000);
        if (ready <= 0) fail("no answer");
        for (int at = 0; at < ready; at++) {
            Peer *peer = &peers[events[at].data.u32];
            make_room(&peer->data, &peer->room, peer->used + 65536);
            ssize_t got = recv(peer->fd, peer->data + peer->used, peer->room - peer->used, 0);
            if (got <= 0) fail("recv");
            peer->used += got;
            size_t size = replies ? redis_size(peer->data, peer->used, replies)
                                  : http_size(peer->data, peer->used);
            if (!size) continue;
            uint32_t length = size;
            append(&answers, &length, sizeof length);
            append(&answers, peer->data, size);
            peer->used = 0;
            waiting--;
            go_on(peer);
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double seconds = ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) / 1e9;
    fprintf(stderr, "%.6f\n", seconds);
    return fwrite(answers.data, 1, answers.used, stdout) == answers.used ? 0 : 1;
}
