/* A closed loop of clients: each sends the same request again as soon as it has its answer.
 *
 *   load PORT PATH BODY-FILE [-c connections] [-w warm-up s] [-t measured s] [-x most s] [-m least requests]
 *        [-s spread ms] [-e events] ["-H" "name: value"]...
 *
 * One thread, one epoll, 127.0.0.1 only. With -e answers must be streams of so many events. It measures for -t
 * seconds after -w of warming up, and then until -m requests were answered or -x seconds have passed. The clients
 * begin one after the other within -s. It prints "begin" and "end" as the measured time begins and ends, and then
 * a line of JSON; percentiles are of what ended in that time.
 *
 * Engines tell their times in what they write (stub.c: "@R:T" and "@T"), so of a request's time what lay outside
 * the engine is known, and of an event how long it was under way. An answer without them is a broken one, as is a
 * stream with fewer events than asked for or without its [DONE], and an answer that breaks off.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES 16384
#define TEXT_BYTES 8192       /* of a whole answer, or of a line of a stream: its times stand near the beginning */
#define FAILURES 1000         /* and the run ends */

enum phase { HEAD, SIZED, TO_END, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, CHUNK_LAST };

struct client {
    int fd, used, connecting, wants_out, closes, status, events, done;
    enum phase phase;
    size_t sent, head_bytes, line_bytes, text_bytes;
    uint64_t left, begun, held;           /* bytes; ns: when it was sent, and for how long the engine had it */
    char head[HEAD_BYTES], line[64], text[TEXT_BYTES];
};

struct samples { double *values; size_t count, room; };

static int events_fd, over;
static struct sockaddr_in address = {.sin_family = AF_INET};
static char *request, input[1 << 17];
static size_t request_bytes, answered;
static long events_wanted, events_seen, broken, refused, reconnects, statuses[1000];
static uint64_t measure_from;
static struct samples latency, outside, first_event, delay;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void add(struct samples *to, double value_ns)
{
    if (to->count == to->room)
        to->values = realloc(to->values, (to->room = to->room ? 2 * to->room : 65536) * sizeof *to->values);
    to->values[to->count++] = value_ns / 1e6;
}

static void want(struct client *c, int out)
{
    struct epoll_event event = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    if (c->wants_out != out)
        epoll_ctl(events_fd, EPOLL_CTL_MOD, c->fd, &event);
    c->wants_out = out;
}

static void open_connection(struct client *c)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    c->used = 0;
    c->connecting = c->wants_out = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) {
        perror("load: cannot connect");
        exit(1);
    }
    epoll_ctl(events_fd, EPOLL_CTL_ADD, c->fd, &event);
}

static void send_more(struct client *c)
{
    while (c->sent < request_bytes) {
        ssize_t count = send(c->fd, request + c->sent, request_bytes - c->sent, MSG_NOSIGNAL);
        if (count < 0) {        /* a connection that is broken is noticed where it is read */
            want(c, errno == EAGAIN);
            return;
        }
        c->sent += count;
    }
    want(c, 0);
}

static void forget(struct client *c)
{
    c->phase = HEAD;
    c->sent = c->head_bytes = c->line_bytes = c->text_bytes = 0;
    c->status = c->events = c->done = c->closes = 0;
    c->held = 0;
}

static void begin(struct client *c)
{
    forget(c);
    c->begun = now_ns();
    send_more(c);
}

static void reconnect(struct client *c)
{
    close(c->fd);
    forget(c);
    open_connection(c);
}

static void fail(struct client *c, long *kind)
{
    if (now_ns() >= measure_from)
        ++*kind;
    if (broken + refused >= FAILURES)
        over = 1;
    reconnect(c);
}

/* Reads "@R:T" or "@T"; 0 where there is neither. */
static uint64_t written_at(struct client *c, char *text, size_t count)
{
    char *at = memchr(text, '@', count), *end;
    if (!at)
        return 0;
    uint64_t first = strtoull(at + 1, &end, 10);
    if (*end != ':')
        return first;
    uint64_t second = strtoull(end + 1, NULL, 10);
    c->held = second - first;
    return second;
}

static void line_of_stream(struct client *c, char *line, size_t count, uint64_t now)
{
    if (count < 5 || memcmp(line, "data:", 5))
        return;
    if (memmem(line, count < 16 ? count : 16, "[DONE]", 6)) {
        c->done = 1;
        return;
    }
    uint64_t at = written_at(c, line, count);
    if (!at)
        return;
    if (now >= measure_from) {
        add(&delay, now - at);
        events_seen++;
        if (!c->events)
            add(&first_event, now - c->begun - c->held);
    }
    c->events++;
}

static void keep(struct client *c, const char *bytes, size_t count)
{
    if (count > TEXT_BYTES - 1 - c->text_bytes)
        count = TEXT_BYTES - 1 - c->text_bytes;
    memcpy(c->text + c->text_bytes, bytes, count);
    c->text[c->text_bytes += count] = 0;
}

/* A part of the answer, without its framing. A line may lie across parts. */
static void take(struct client *c, const char *bytes, size_t count, uint64_t now)
{
    const char *end = bytes + count, *newline;
    if (!events_wanted) {
        keep(c, bytes, count);
        return;
    }
    for (; (newline = memchr(bytes, '\n', end - bytes)); bytes = newline + 1) {
        keep(c, bytes, newline - bytes);
        line_of_stream(c, c->text, c->text_bytes, now);
        c->text_bytes = 0;
    }
    keep(c, bytes, end - bytes);
}

static void finish(struct client *c, uint64_t now)
{
    int whole = c->status == 200;
    if (whole && events_wanted)
        whole = c->done && c->events >= events_wanted;
    else if (whole)
        whole = written_at(c, c->text, c->text_bytes) != 0;
    if (c->status == 200 && !whole) {
        fail(c, &broken);
        return;
    }
    if (now >= measure_from) {
        statuses[c->status]++;
        answered++;
        if (whole) {
            add(&latency, now - c->begun);
            add(&outside, now - c->begun - c->held);
        }
    }
    if (c->closes || c->sent < request_bytes)       /* refused before it was complete: the rest would follow */
        reconnect(c);
    else {
        c->used = 1;
        begin(c);
    }
}

static void read_head(struct client *c)
{
    char *line = c->head, *end;
    c->status = atoi(c->head + sizeof "HTTP/1.1");
    if (c->status < 100 || c->status > 999)
        c->status = 999;
    c->phase = TO_END;
    while ((end = strstr(line, "\r\n"))) {
        *end = 0;
        if (!strncasecmp(line, "content-length:", 15)) {
            c->left = strtoull(line + 15, NULL, 10);
            c->phase = SIZED;
        } else if (!strncasecmp(line, "transfer-encoding:", 18) && strcasestr(line, "chunked"))
            c->phase = CHUNK_SIZE;
        else if (!strncasecmp(line, "connection:", 11) && strcasestr(line, "close"))
            c->closes = 1;
        line = end + 2;
    }
    if (c->phase == TO_END)
        c->closes = 1;
}

static void feed(struct client *c, char *at, char *end, uint64_t now)
{
    while (at < end) {
        uint64_t count = c->left < (uint64_t)(end - at) ? c->left : (uint64_t)(end - at);
        switch (c->phase) {
        case HEAD: {
            size_t old = c->head_bytes, n = end - at;
            if (n > HEAD_BYTES - 1 - old)
                n = HEAD_BYTES - 1 - old;
            memcpy(c->head + old, at, n);
            c->head[c->head_bytes += n] = 0;
            char *last = strstr(c->head + (old > 3 ? old - 3 : 0), "\r\n\r\n");
            if (!last) {
                if (c->head_bytes == HEAD_BYTES - 1)
                    fail(c, &broken);
                return;
            }
            last[2] = 0;
            at += last + 4 - c->head - old;
            read_head(c);
            if (c->status < 200) {
                c->phase = HEAD;
                c->head_bytes = 0;
            } else if (c->phase == SIZED && !c->left) {
                finish(c, now);
                return;
            }
            break;
        }
        case TO_END:
            take(c, at, end - at, now);
            return;
        case SIZED:
        case CHUNK_DATA:
            take(c, at, count, now);
            at += count;
            if (c->left -= count)
                break;
            if (c->phase == SIZED) {
                finish(c, now);
                return;
            }
            c->phase = CHUNK_END;
            break;
        case CHUNK_SIZE:
        case CHUNK_END:
        case CHUNK_LAST: {
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
            else if (empty) {
                finish(c, now);
                return;
            }
            break;
        }
        }
    }
}

static void receive(struct client *c)
{
    ssize_t count = recv(c->fd, input, sizeof input, 0);
    if (count > 0)
        feed(c, input, input + count, now_ns());
    else if (count < 0 && errno == EAGAIN)
        return;
    else if (!count && c->phase == TO_END)
        finish(c, now_ns());
    else if (c->used && c->phase == HEAD && !c->head_bytes) {
        reconnects++;       /* it was closed for having been idle, or used often, as the request was under way */
        reconnect(c);
    } else
        fail(c, &broken);
}

static void connected(struct client *c)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        fail(c, &refused);
        return;
    }
    c->connecting = 0;
    begin(c);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, struct samples *all)
{
    printf(",\"%s\":", name);
    if (!all->count) {
        printf("null");
        return;
    }
    qsort(all->values, all->count, sizeof *all->values, ascending);
    printf("{\"count\":%zu", all->count);
    for (int i = 0; i < 4; i++)
        printf(",\"%s\":%.4f", (const char *[]){"p50", "p95", "p99", "max"}[i],
            all->values[(size_t)((double[]){.5, .95, .99, 1}[i] * (all->count - 1))]);
    printf("}");
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static int read_request(const char *path, const char *file, const char *headers)
{
    struct stat body;
    int fd = open(file, O_RDONLY);
    if (fd < 0 || fstat(fd, &body))
        return 0;
    request = malloc(body.st_size + 16384);
    request_bytes = snprintf(request, 16384, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
        "Accept: */*\r\nUser-Agent: load\r\n%sContent-Length: %ld\r\n\r\n", path, ntohs(address.sin_port), headers,
        (long)body.st_size);
    for (ssize_t n; (n = read(fd, request + request_bytes, body.st_size)) > 0;)
        request_bytes += n;
    close(fd);
    return 1;
}

int main(int count, char **arguments)
{
    char headers[8192] = "";
    int connections = 1, option, opened = 0;
    double warm = 0.5, measured = 2, most = 15, spread = 0, cpu = 0;
    size_t least = 1;
    while ((option = getopt(count, arguments, "c:w:t:x:m:s:e:H:")) > 0)
        switch (option) {
        case 'c': connections = atoi(optarg); break;
        case 'w': warm = atof(optarg); break;
        case 't': measured = atof(optarg); break;
        case 'x': most = atof(optarg); break;
        case 'm': least = atol(optarg); break;
        case 's': spread = atof(optarg); break;
        case 'e': events_wanted = atol(optarg); break;
        case 'H':
            if (strlen(headers) + strlen(optarg) + 3 < sizeof headers)
                strcat(strcat(headers, optarg), "\r\n");
            break;
        default: return 2;
        }
    if (count - optind != 3) {
        fprintf(stderr, "usage: load PORT PATH BODY-FILE [options]\n");
        return 2;
    }
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(atoi(arguments[optind]));
    if (!read_request(arguments[optind + 1], arguments[optind + 2], headers)) {
        perror(arguments[optind + 2]);
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    events_fd = epoll_create1(0);
    struct client *clients = calloc(connections, sizeof *clients);
    uint64_t start = now_ns(), end = start + (warm + measured) * 1e9, last = start + (warm + most) * 1e9, from = 0, now;
    measure_from = start + warm * 1e9;
    for (;;) {
        struct epoll_event ready[512];
        for (now = now_ns(); opened < connections && now >= start + spread * 1e6 * opened / connections;)
            open_connection(&clients[opened++]);
        int found = epoll_wait(events_fd, ready, 512, opened < connections ? 1 : 20);
        now = now_ns();
        if (!from && now >= measure_from) {
            from = now;
            cpu = cpu_seconds();
            printf("begin\n");
            fflush(stdout);
        }
        if (over || now >= last || (now >= end && answered >= least))
            break;
        for (int i = 0; i < found; i++) {
            struct client *c = ready[i].data.ptr;
            if (c->connecting)
                connected(c);
            else {
                if (ready[i].events & EPOLLOUT)
                    send_more(c);
                if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                    receive(c);
            }
        }
    }
    if (!from)
        printf("begin\n");
    printf("end\n");
    fflush(stdout);
    cpu = cpu_seconds() - cpu;
    uint64_t oldest = now;
    for (int i = 0; i < opened; i++)
        if (clients[i].begun && clients[i].begun < oldest)
            oldest = clients[i].begun;
    printf("{\"seconds\":%.4f,\"answered\":%zu,\"events\":%ld,\"broken\":%ld,\"refused\":%ld,\"reconnects\":%ld,"
        "\"oldest_ms\":%.1f,\"client_cpu_s\":%.4f,\"gave_up\":%s,\"statuses\":{", (now - (from ? from : now)) / 1e9,
        answered, events_seen, broken, refused, reconnects, (now - oldest) / 1e6, cpu, over ? "true" : "false");
    const char *comma = "";
    for (int i = 0; i < 1000; i++)
        if (statuses[i]) {
            printf("%s\"%d\":%ld", comma, i, statuses[i]);
            comma = ",";
        }
    printf("}");
    print("latency_ms", &latency);
    print("outside_ms", &outside);
    print("first_event_ms", &first_event);
    print("event_delay_ms", &delay);
    printf("}\n");
    return 0;
}
