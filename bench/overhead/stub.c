/* An engine that costs next to nothing: what vLLM's server answers, without the model.
 *
 *   stub PORT [ENGINES]
 *
 * So many engines on ports one after the other, with counts of their own. One thread, one epoll, 127.0.0.1 only.
 * It reads every request to its end and answers whole, or as a stream of events where the body says so. Each
 * answer tells when the request had come (R) and each piece when it was written (T), in nanoseconds of
 * CLOCK_MONOTONIC: "@R:T" in a whole answer and in a stream's first event, "@T" in its others. A client on the
 * same machine thus knows what of its waiting was the engine's, and how late an event came.
 *
 *   GET /set?delay=MS&jitter=MS&gap=MS&events=N&hold=N&page=BYTES
 *
 * sets how it answers from now on: `delay` before an answer, more or less by up to `jitter`; N events `gap` apart;
 * `hold` keeps answers back until so many requests are here at once, or 30 s have passed; /metrics is filled up to
 * `page` bytes with series that no gateway reads. They hold for all engines.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES 16384
#define READ_BYTES (1 << 18)
#define OVERLAP 32        /* longer than what is looked for in bodies, which may lie across two reads */
#define SLOTS 4096        /* of the timer wheel, a millisecond each */
#define HELD_MS 30000
#define PAGE_BYTES 100000 /* the longest /metrics */

enum phase { HEAD, SIZED, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, CHUNK_LAST, BUSY };

struct engine { int listener, running; uint64_t finished, written; };

struct client {
    struct engine *engine;
    int fd, gone, closes, streams, usage, begun, events_left;
    enum phase phase;
    size_t head_bytes, line_bytes, overlap_bytes;
    uint64_t left;                    /* bytes of the body, or of the chunk */
    uint64_t came;                    /* when the request was complete, ns */
    uint64_t due;                     /* when to write next, ms */
    struct client *next, *before;     /* in a slot of the wheel, or among those that are held */
    struct client **list;
    char head[HEAD_BYTES], line[64], overlap[OVERLAP];
};

static int events_fd, running, held_count;
static long delay_ms, jitter_ms, gap_ms = 5, events = 64, hold, page_bytes;
static uint64_t tick, held_since;
static struct client *wheel[SLOTS], *held, *buried;
static char memory[OVERLAP + READ_BYTES], *const data = memory + OVERLAP;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void leave_list(struct client *c)
{
    if (!c->list)
        return;
    if (c->next)
        c->next->before = c->before;
    *(c->before ? &c->before->next : c->list) = c->next;
    if (c->list == &held)
        held_count--;
    c->list = NULL;
}

static void join_list(struct client *c, struct client **list)
{
    c->list = list;
    c->before = NULL;
    c->next = *list;
    if (*list)
        (*list)->before = c;
    *list = c;
}

static void wait_until(struct client *c, uint64_t ms)
{
    c->due = ms > tick ? ms : tick + 1;
    join_list(c, &wheel[c->due % SLOTS]);
}

static void is_running(struct client *c, int by)
{
    running += by;
    c->engine->running += by;
}

/* Closed now, and freed when nothing of this turn of the loop can name it any more. */
static void drop(struct client *c)
{
    if (c->gone)
        return;
    c->gone = 1;
    is_running(c, -(c->phase == BUSY));
    leave_list(c);
    close(c->fd);
    join_list(c, &buried);
}

/* What is written is small and the kernel's buffers are not: a client that cannot take it has stopped reading. */
static void send_all(struct client *c, const char *bytes, size_t count)
{
    if (!c->gone && send(c->fd, bytes, count, MSG_NOSIGNAL) != (ssize_t)count)
        drop(c);
}

static void answer(struct client *c, int status, const char *kind, const char *body)
{
    static char out[PAGE_BYTES + 8192];
    int count = snprintf(out, sizeof out,
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s\r\n%s", status,
        status == 200 ? "OK" : "Not Found", kind, strlen(body), c->closes ? "Connection: close\r\n" : "", body);
    send_all(c, out, count);
}

static void next_request(struct client *c)
{
    is_running(c, -(c->phase == BUSY));
    c->phase = HEAD;
    c->head_bytes = c->line_bytes = c->overlap_bytes = 0;
    c->streams = c->usage = c->begun = 0;
    if (c->closes)
        drop(c);
}

/* 64 steps of depth 3, of which 8, 8, 16 and 32 had none to three tokens accepted: 64 + 136 = 200 tokens. */
#define USAGE "\"usage\":{\"prompt_tokens\":1200,\"total_tokens\":1400,\"completion_tokens\":200}"
#define ACCEPTED \
    "\"metrics\":{\"speculative_decoding\":{\"mean_acceptance_length\":3.125,\"draft_acceptance_rate\":0.7083," \
    "\"acceptance_histogram\":[8,8,16,32],\"num_spec_steps\":64,\"num_accepted_draft_tokens\":136," \
    "\"num_draft_tokens\":192,\"num_spec_tokens\":3}}"

static void answer_whole(struct client *c)
{
    char body[2048];
    snprintf(body, sizeof body,
        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"ocr-model\","
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"@%lu:%lu | Invoice | 3.50 |\"},"
        "\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE "," ACCEPTED "}", c->came, now_ns());
    answer(c, 200, "application/json", body);
    c->engine->finished++;
    c->engine->written += 200;
    next_request(c);
}

struct text { char bytes[4096]; size_t count; };

/* Adds one chunk of the body: an event with the members of a completion chunk. */
static void add_event(struct text *to, const char *members, ...)
{
    char event[1024];
    va_list values;
    int count = snprintf(event, sizeof event, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\","
        "\"created\":1700000000,\"model\":\"ocr-model\",");
    va_start(values, members);
    count += vsnprintf(event + count, sizeof event - count, members, values);
    va_end(values);
    to->count += snprintf(to->bytes + to->count, sizeof to->bytes - to->count, "%x\r\n%s}\n\n\r\n", count + 3, event);
}

#define CHOICE "\"choices\":[{\"index\":0,\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s}]"

static void write_event(struct client *c)
{
    struct text out = {.count = 0};
    char content[96];
    int last = --c->events_left <= 0;
    if (!c->begun) {
        c->begun = 1;
        out.count = sprintf(out.bytes, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            "Transfer-Encoding: chunked\r\n%s\r\n", c->closes ? "Connection: close\r\n" : "");
        add_event(&out, CHOICE, "\"role\":\"assistant\",\"content\":\"\"", "null");
        snprintf(content, sizeof content, "\"content\":\"@%lu:%lu | 3.50\"", c->came, now_ns());
    } else
        snprintf(content, sizeof content, "\"content\":\"@%lu | 3.50\"", now_ns());
    add_event(&out, CHOICE, content, last ? "\"stop\"" : "null");
    if (last) {
        if (c->usage)
            add_event(&out, "\"choices\":[]," USAGE "," ACCEPTED);
        out.count += sprintf(out.bytes + out.count, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    }
    send_all(c, out.bytes, out.count);
    c->engine->written += 3;
    if (c->gone)
        return;
    if (last) {
        c->engine->finished++;
        next_request(c);
    } else
        wait_until(c, c->due + gap_ms);
}

static void go_on(struct client *c)
{
    if (c->streams)
        write_event(c);
    else
        answer_whole(c);
}

static void release(void)
{
    while (held) {
        struct client *c = held;
        leave_list(c);
        c->due = tick;
        go_on(c);
    }
}

static void begin_answer(struct client *c)
{
    c->phase = BUSY;
    c->came = now_ns();
    c->events_left = events;
    c->due = tick;
    is_running(c, 1);
    if (hold) {
        if (!held_count++)
            held_since = tick;
        join_list(c, &held);
        if (held_count >= hold)
            release();
    } else if (delay_ms)
        wait_until(c, tick + delay_ms - jitter_ms + (jitter_ms ? random() % (2 * jitter_ms + 1) : 0));
    else
        go_on(c);
}

/* The series that gateways read, of an engine with a speculative config. */
static void answer_metrics(struct client *c)
{
    static const char *const labels = "{engine=\"0\",model_name=\"ocr-model\"}";
    static const char *const names[] = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "prompt_tokens_total", "generation_tokens_total", "request_success_total", "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"};
    const struct engine *engine = c->engine;
    uint64_t finished = engine->finished;
    uint64_t values[] = {engine->running, 0, 0, 1200 * finished, engine->written, finished, 64 * finished, 192 * finished,
        136 * finished};
    static char page[PAGE_BYTES + 4096];
    size_t count = 0;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        count += sprintf(page + count, "# TYPE vllm:%s %s\nvllm:%s%s %lu.0\n", names[i], i < 3 ? "gauge" : "counter",
            names[i], labels, values[i]);
    for (int i = 0; i < 3; i++)
        count += sprintf(page + count, "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\","
            "model_name=\"ocr-model\",position=\"%d\"} %lu.0\n", i, (uint64_t[]){56, 48, 32}[i] * finished);
    for (int i = 0; count < (size_t)page_bytes; i++)
        count += sprintf(page + count, "vllm:request_params_max_tokens_bucket{engine=\"0\",le=\"%d.0\","
            "model_name=\"ocr-model\"} 0.0\n", i);
    answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", page);
}

static void set(const char *query)
{
    struct { const char *name; long *value; } all[] = {
        {"delay=", &delay_ms}, {"jitter=", &jitter_ms}, {"gap=", &gap_ms}, {"events=", &events}, {"hold=", &hold},
        {"page=", &page_bytes}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *found = strstr(query, all[i].name);
        if (found)
            *all[i].value = atol(found + strlen(all[i].name));
    }
    if (page_bytes > PAGE_BYTES)
        page_bytes = PAGE_BYTES;
}

static int asks(const struct client *c, const char *start)
{
    return !strncmp(c->head, start, strlen(start)) && strchr(" ?", c->head[strlen(start)]);
}

static void respond(struct client *c)
{
    static const char *const models = "{\"object\":\"list\",\"data\":[{\"id\":\"ocr-model\",\"object\":\"model\","
        "\"created\":1700000000,\"owned_by\":\"vllm\",\"root\":\"ocr-model\",\"max_model_len\":32768}]}";
    static const char *const info = "{\"version\":\"0.32.0\",\"model_path\":\"ocr-model\","
        "\"served_model_name\":\"ocr-model\",\"tp_size\":1,\"dp_size\":1}";
    if (asks(c, "POST /v1/chat/completions") || asks(c, "POST /v1/completions")) {
        begin_answer(c);
        return;
    }
    if (asks(c, "GET /health"))
        answer(c, 200, "text/plain", "");
    else if (asks(c, "GET /metrics"))
        answer_metrics(c);
    else if (asks(c, "GET /v1/models"))
        answer(c, 200, "application/json", models);
    else if (asks(c, "GET /version") || strstr(c->head, "_info HTTP"))    /* routers of other engines ask these */
        answer(c, 200, "application/json", info);
    else if (asks(c, "GET /set")) {
        set(c->head);
        answer(c, 200, "text/plain", "");
    } else
        answer(c, 404, "application/json", "{\"error\":{\"message\":\"not found\"}}");
    next_request(c);
}

static int is_true(const char *from, const char *end, const char *member)
{
    size_t length = strlen(member);
    if ((size_t)(end - from) < length || memcmp(from, member, length))
        return 0;
    for (from += length; from < end && *from == ' ';)
        from++;
    return end - from >= 4 && !memcmp(from, "true", 4);
}

/* Looks at each quote of a body for what decides the answer; an image's megabytes hold none. */
static void look(struct client *c, char *bytes, size_t count)
{
    char *start = bytes - c->overlap_bytes, *end = bytes + count, *at = start;
    memcpy(start, c->overlap, c->overlap_bytes);      /* over what has been taken in, or the room before */
    for (; (at = memchr(at, '"', end - at)); at++) {
        c->streams |= is_true(at, end, "\"stream\":");
        c->usage |= is_true(at, end, "\"include_usage\":");
    }
    size_t keep = end - start < OVERLAP ? end - start : OVERLAP;
    memcpy(c->overlap, end - keep, keep);
    c->overlap_bytes = keep;
}

static void read_head(struct client *c)
{
    char *line = c->head, *end;
    c->phase = SIZED;
    c->left = 0;
    c->closes = 0;
    while ((end = strstr(line, "\r\n"))) {
        *end = 0;
        if (!strncasecmp(line, "content-length:", 15))
            c->left = strtoull(line + 15, NULL, 10);
        else if (!strncasecmp(line, "transfer-encoding:", 18) && strcasestr(line, "chunked"))
            c->phase = CHUNK_SIZE;
        else if (!strncasecmp(line, "connection:", 11) && strcasestr(line, "close"))
            c->closes = 1;
        line = end + 2;
    }
    if (strstr(c->head, " HTTP/1.0"))
        c->closes = 1;
}

/* Takes in what has been read; what a client sends before it has its answer ends the connection. */
static void feed(struct client *c, char *at, char *end)
{
    while (!c->gone && at < end) {
        uint64_t count = c->left < (uint64_t)(end - at) ? c->left : (uint64_t)(end - at);
        switch (c->phase) {
        case HEAD: {
            size_t old = c->head_bytes, n = end - at;
            if (n > HEAD_BYTES - 1 - old)
                n = HEAD_BYTES - 1 - old;
            memcpy(c->head + old, at, n);
            c->head[old + n] = 0;
            char *over = strstr(c->head + (old > 3 ? old - 3 : 0), "\r\n\r\n");
            c->head_bytes += n;
            if (!over && c->head_bytes == HEAD_BYTES - 1)
                drop(c);
            if (!over)
                return;
            over[2] = 0;
            at += over + 4 - c->head - old;
            read_head(c);
            if (c->phase == SIZED && !c->left)
                respond(c);
            break;
        }
        case SIZED:
        case CHUNK_DATA:
            look(c, at, count);
            at += count;
            if (c->left -= count)
                break;
            if (c->phase == SIZED)
                respond(c);
            else
                c->phase = CHUNK_END;
            break;
        case CHUNK_SIZE:
        case CHUNK_LAST:
        case CHUNK_END: {
            char byte = *at++;
            if (byte != '\n') {
                if (byte != '\r' && c->line_bytes < sizeof c->line - 1)
                    c->line[c->line_bytes++] = byte;
                break;
            }
            c->line[c->line_bytes] = 0;
            int empty = !c->line_bytes;
            c->line_bytes = 0;
            if (c->phase == CHUNK_END)
                c->phase = CHUNK_SIZE;
            else if (c->phase == CHUNK_SIZE)
                c->phase = (c->left = strtoull(c->line, NULL, 16)) ? CHUNK_DATA : CHUNK_LAST;
            else if (empty)
                respond(c);
            break;
        }
        case BUSY:
            drop(c);
        }
    }
}

static void advance(void)
{
    for (uint64_t now = now_ns() / 1000000; tick < now;) {
        tick++;
        for (struct client *c = wheel[tick % SLOTS], *next; c; c = next) {
            next = c->next;
            if (c->due <= tick) {
                leave_list(c);
                go_on(c);
            }
        }
        if (held && tick - held_since > HELD_MS)
            release();
    }
}

static void accept_all(struct engine *engine)
{
    int fd, on = 1;
    while ((fd = accept4(engine->listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct client *c = calloc(1, sizeof *c);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        c->fd = fd;
        c->engine = engine;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        epoll_ctl(events_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int count, char **arguments)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event ready[512];
    int engines = count == 3 ? atoi(arguments[2]) : 1, on = 1;
    if (count < 2 || count > 3 || engines < 1) {
        fprintf(stderr, "usage: stub PORT [ENGINES]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    events_fd = epoll_create1(0);
    struct engine *all = calloc(engines, sizeof *all);
    for (struct engine *one = all; one < all + engines; one++) {
        struct epoll_event listening = {.events = EPOLLIN, .data.ptr = one};
        one->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        address.sin_port = htons(atoi(arguments[1]) + (one - all));
        setsockopt(one->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(one->listener, (struct sockaddr *)&address, sizeof address) || listen(one->listener, 4096)) {
            perror("stub: cannot listen");
            return 1;
        }
        epoll_ctl(events_fd, EPOLL_CTL_ADD, one->listener, &listening);
    }
    tick = now_ns() / 1000000;
    for (;;) {
        /* With nothing to write for now the wheel may stand still: it is turned before it is looked at. */
        int found = epoll_wait(events_fd, ready, 512, running ? 1 : 1000);
        advance();
        for (int i = 0; i < found; i++) {
            struct client *c = ready[i].data.ptr;
            if ((struct engine *)(void *)c >= all && (struct engine *)(void *)c < all + engines) {
                accept_all(ready[i].data.ptr);
                continue;
            }
            if (c->gone)
                continue;
            ssize_t got = recv(c->fd, data, READ_BYTES, 0);
            if (got > 0)
                feed(c, data, data + got);
            else if (!got || errno != EAGAIN)
                drop(c);
        }
        while (buried) {
            struct client *c = buried;
            leave_list(c);
            free(c);
        }
    }
}
