/* Load for dwork servers: REQ sockets in lockstep, protobuf written by hand, one thread a worker.
 *
 *   load URL create N BATCH            N tasks without dependencies, BATCH in a message
 *   load URL stencil WIDTH STEPS BATCH WIDTH x STEPS tasks, each after up to three of the step before
 *   load URL work WORKERS n            steal n and complete them, until EXIT
 *
 * Prints one line of JSON.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

enum { CREATE = 0, STEAL = 1, COMPLETE = 2, TRANSFER = 3, NOT_FOUND = 5, OK = 6, EXIT = 7 };
enum { BUFFER_BYTES = 8 << 20, NAME_BYTES = 64 };

static void *context;
static const char *url;

static void die(const char *text) {
    fprintf(stderr, "load: %s: %s\n", text, zmq_strerror(zmq_errno()));
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *connected(void) {
    int linger = 0;
    void *socket = zmq_socket(context, ZMQ_REQ);
    if (socket == NULL || zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_connect(socket, url) != 0)
        die("connect");
    return socket;
}

static uint8_t *put_varint(uint8_t *out, uint64_t value) {
    while (value >= 0x80) {
        *out++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *out++ = (uint8_t)value;
    return out;
}

static uint8_t *put_bytes(uint8_t *out, int field, const void *data, size_t size) {
    *out++ = (uint8_t)(field << 3 | 2);
    out = put_varint(out, size);
    memcpy(out, data, size);
    return out + size;
}

/* A task with up to three predecessors. */
static uint8_t *put_task(uint8_t *out, const char *name, size_t size, char preds[][NAME_BYTES],
                         int preds_count) {
    uint8_t task[512], dep[80];
    uint8_t *end = put_bytes(task, 1, name, size);
    end = put_bytes(end, 2, "bench", 5);
    for (int i = 0; i < preds_count; i++) {
        uint8_t *dep_end = put_bytes(dep, 1, preds[i], strlen(preds[i]));
        end = put_bytes(end, 4, dep, (size_t)(dep_end - dep));
    }
    return put_bytes(out, 2, task, (size_t)(end - task));
}

static const uint8_t *get_varint(const uint8_t *in, const uint8_t *end, uint64_t *value) {
    int shift = 0;
    *value = 0;
    while (in < end) {
        *value |= (uint64_t)(*in & 0x7f) << shift;
        if (!(*in++ & 0x80)) return in;
        shift += 7;
    }
    die("a reply is cut short");
    return NULL;
}

static const uint8_t *skip(const uint8_t *in, const uint8_t *end, unsigned wire) {
    uint64_t size;
    switch (wire) {
    case 0: return get_varint(in, end, &size);
    case 1: return in + 8;
    case 2: in = get_varint(in, end, &size); return in + size;
    default: return in + 4;
    }
}

/* The kind of a reply; the names of its tasks are written into `out` as tasks to complete. */
static int read_reply(const uint8_t *in, size_t size, uint8_t **out, int *count) {
    const uint8_t *end = in + size;
    int kind = -1;
    while (in < end) {
        uint64_t key, length;
        in = get_varint(in, end, &key);
        if (key == (1 << 3 | 0)) {
            in = get_varint(in, end, &length);
            kind = (int)length;
        } else if (key == (2 << 3 | 2)) {
            in = get_varint(in, end, &length);
            const uint8_t *task = in, *task_end = in + length;
            while (task < task_end) {
                uint64_t task_key, name_size;
                task = get_varint(task, task_end, &task_key);
                if (task_key == (1 << 3 | 2)) {
                    task = get_varint(task, task_end, &name_size);
                    *out = put_task(*out, (const char *)task, name_size, NULL, 0);
                    ++*count;
                    task += name_size;
                } else {
                    task = skip(task, task_end, task_key & 7);
                }
            }
            in = task_end;
        } else {
            in = skip(in, end, key & 7);
        }
    }
    return kind;
}

/* One request and its reply. */
static int ask(void *socket, const uint8_t *request, size_t size, uint8_t **out, int *count) {
    zmq_msg_t reply;
    if (zmq_send(socket, request, size, 0) < 0) die("send");
    zmq_msg_init(&reply);
    if (zmq_msg_recv(&reply, socket, 0) < 0) die("receive");
    int kind = read_reply(zmq_msg_data(&reply), zmq_msg_size(&reply), out, count);
    zmq_msg_close(&reply);
    return kind;
}

static void expect_ok(void *socket, const uint8_t *request, size_t size) {
    static __thread uint8_t rest[1 << 20];
    uint8_t *out = rest;
    int count = 0;
    if (ask(socket, request, size, &out, &count) != OK) {
        fprintf(stderr, "load: a request was not answered with OK\n");
        exit(1);
    }
}

static void create(long width, long steps, long batch, int linked) {
    uint8_t *buffer = malloc(BUFFER_BYTES);
    void *socket = connected();
    long total = width * steps, messages = 0;
    double start = seconds();
    for (long first = 0; first < total; first += batch) {
        uint8_t *end = buffer;
        *end++ = 8;
        *end++ = CREATE;
        for (long i = first; i < first + batch && i < total; i++) {
            char name[NAME_BYTES], preds[3][NAME_BYTES];
            long step = i / width, place = i % width;
            int preds_count = 0;
            int size = linked ? snprintf(name, sizeof name, "t%04ld_%04ld", step, place)
                              : snprintf(name, sizeof name, "t%07ld", i);
            for (long near = place - 1; linked && step > 0 && near <= place + 1; near++)
                if (near >= 0 && near < width)
                    snprintf(preds[preds_count++], NAME_BYTES, "t%04ld_%04ld", step - 1, near);
            end = put_task(end, name, (size_t)size, preds, preds_count);
        }
        expect_ok(socket, buffer, (size_t)(end - buffer));
        messages++;
    }
    double spent = seconds() - start;
    printf("{\"tasks\": %ld, \"messages\": %ld, \"seconds\": %.6f}\n", total, messages, spent);
    zmq_close(socket);
    free(buffer);
}

typedef struct {
    int number, n;
    long tasks, messages, pairs;
    float *micros;
} Worker;

enum { PAIRS_KEPT = 200000 };

static void *work(void *argument) {
    Worker *worker = argument;
    uint8_t *buffer = malloc(BUFFER_BYTES), steal[64];
    char location[32];
    int size = snprintf(location, sizeof location, "w%d", worker->number);
    void *socket = connected();
    uint8_t *steal_end = steal;
    *steal_end++ = 8;
    *steal_end++ = STEAL;
    if (worker->n != 1) {
        *steal_end++ = 4 << 3;
        steal_end = put_varint(steal_end, (uint64_t)worker->n);
    }
    steal_end = put_bytes(steal_end, 6, location, (size_t)size);
    for (;;) {
        double start = seconds();
        uint8_t *end = buffer;
        int count = 0;
        *end++ = 8;
        *end++ = COMPLETE;
        int kind = ask(socket, steal, (size_t)(steal_end - steal), &end, &count);
        worker->messages++;
        if (kind == EXIT) break;
        if (kind != TRANSFER) continue;
        end = put_bytes(end, 6, location, (size_t)size);
        expect_ok(socket, buffer, (size_t)(end - buffer));
        worker->messages++;
        worker->tasks += count;
        if (worker->pairs < PAIRS_KEPT)
            worker->micros[worker->pairs++] = (float)((seconds() - start) * 1e6);
    }
    zmq_close(socket);
    free(buffer);
    return NULL;
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void work_all(int workers_count, int n) {
    Worker *workers = calloc((size_t)workers_count, sizeof *workers);
    pthread_t *threads = calloc((size_t)workers_count, sizeof *threads);
    double start = seconds();
    for (int i = 0; i < workers_count; i++) {
        workers[i] = (Worker){.number = i, .n = n, .micros = malloc(PAIRS_KEPT * sizeof(float))};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    long tasks = 0, messages = 0, pairs = 0;
    float *micros = malloc(sizeof(float) * PAIRS_KEPT * (size_t)workers_count);
    for (int i = 0; i < workers_count; i++) {
        pthread_join(threads[i], NULL);
        tasks += workers[i].tasks;
        messages += workers[i].messages;
        memcpy(micros + pairs, workers[i].micros, sizeof(float) * (size_t)workers[i].pairs);
        pairs += workers[i].pairs;
    }
    double spent = seconds() - start;
    qsort(micros, (size_t)pairs, sizeof(float), compare);
    printf("{\"tasks\": %ld, \"messages\": %ld, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
           tasks, messages, spent, pairs ? micros[pairs / 2] : 0, pairs ? micros[pairs * 99 / 100] : 0);
}

int main(int count, char **arguments) {
    if (count < 5) {
        fprintf(stderr, "usage: load URL create|stencil|work NUMBER NUMBER [NUMBER]\n");
        return 2;
    }
    url = arguments[1];
    context = zmq_ctx_new();
    const char *mode = arguments[2];
    long first = atol(arguments[3]), second = atol(arguments[4]);
    if (strcmp(mode, "create") == 0)
        create(first, 1, second, 0);
    else if (strcmp(mode, "stencil") == 0 && count == 6)
        create(first, second, atol(arguments[5]), 1);
    else if (strcmp(mode, "work") == 0)
        work_all((int)first, (int)second);
    else
        return 2;
    zmq_ctx_term(context);
    return 0;
}
