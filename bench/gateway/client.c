/* A strict load client: every answer is read to its end, and counts only if it is complete.
 *
 *     client PORT CONNECTIONS MILLISECONDS MOST N CHUNKS PAUSE < request
 *
 * The request, head and body, is sent unchanged on CONNECTIONS connections at once; each connection sends the next one
 * PAUSE milliseconds after an answer is complete. No request is sent after MILLISECONDS or after MOST requests (0: any
 * number), and requests in flight are read to their end, so that what a server has spent can be divided by what it has
 * done. An answer, JSON or a stream, is complete if it has status 200, N choices of CHUNKS words with one finish_reason
 * each, and for a stream [DONE] as its last event. One line of JSON is printed: `in_time` counts what came within
 * MILLISECONDS, `all` everything; times are in microseconds from the sending of the request to the first word, to the
 * first word of the last choice, and to the end.
 */
#include "answer.h"

#define MOST_CONNECTIONS 8192
#define MOST_TIMES (1 << 22)
#define SILENCE (60 * SECOND)
#define STAGGER (SECOND / 20) /* the first requests are spread over this time */
#define ENOUGH_ERRORS 200

enum { CONNECT, STATUS, CUT, BROKEN, INCOMPLETE, SILENT, KINDS };
static const char *KIND[KINDS] = {"connect", "status", "cut", "broken", "incomplete", "silent"};

typedef struct {
    int fd;
    int64_t sent, heard_at, next; /* times of the request, of the last bytes, and of the next request; 0: none */
    Answer answer;
} Connection;

static Connection *connections;
static struct { long answers, chunks; } in_time, all;
static struct { long count; uint32_t *of; } first, last_first, whole;
static long errors[KINDS], reconnects, begun;
static char request[ROOM];
static int port, poll_fd, many, n, chunks, told;
static size_t request_length;
static int64_t start, stop, pause_time;
static long most;

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void dial(Connection *c) {
    struct sockaddr_in address = loopback(port);
    c->fd = checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    for (int tries = 0; connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0; tries++) {
        if (tries == 50) die("connect");
        errors[CONNECT]++;
        usleep(20000);
    }
    send_at_once(c->fd);
    struct epoll_event want = {.events = EPOLLIN, .data.ptr = c};
    checked(epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &want), "epoll_ctl");
}

static int over(void) { return (most && begun >= most) || now() >= stop; }

static void ask(Connection *c) {
    c->next = 0;
    if (over()) return;
    begun++;
    expect(&c->answer, n);
    c->heard_at = now();
    c->sent = 0;
    ssize_t sent = send(c->fd, request, request_length, MSG_NOSIGNAL);
    if (sent == (ssize_t)request_length) {
        c->sent = c->heard_at;
    } else { /* a server may close a connection between two answers */
        close(c->fd);
        reconnects++;
        begun--;
        dial(c);
        c->next = now();
    }
}

static void fail(Connection *c, int kind) {
    if (!told++) {
        Answer *a = &c->answer;
        int length = a->text ? a->text : a->heard;
        fprintf(stderr, "status %d, %d of %d choices ended, the first has %d letters: %.*s\n", a->status, a->finished, n, a->said[0],
                length < 600 ? length : 600, a->text ? a->events : a->input);
    }
    errors[kind]++;
    close(c->fd);
    c->sent = 0;
    c->fd = -1;
    long sum = 0;
    for (int i = 0; i < KINDS; i++) sum += errors[i];
    if (sum >= ENOUGH_ERRORS) stop = 0; /* the run gives no result any more */
    if (!over()) {
        dial(c);
        c->next = now() + SECOND / 100;
    }
}

static void answered(Connection *c) {
    int64_t time = now();
    Answer *a = &c->answer;
    if (a->status != 200) return fail(c, STATUS);
    if (!is_whole(a, chunks)) return fail(c, INCOMPLETE);
    in_time.answers += time < stop;
    all.answers++;
    if (whole.count < MOST_TIMES) {
        whole.of[whole.count++] = (time - c->sent) / 1000;
        if (a->stream) {
            first.of[first.count++] = (a->first - c->sent) / 1000;
            last_first.of[last_first.count++] = (a->last_first - c->sent) / 1000;
        }
    }
    c->sent = 0;
    c->next = time + pause_time;
    if (!pause_time) ask(c);
}

static void hear(Connection *c) {
    Answer *a = &c->answer;
    ssize_t got = recv(c->fd, a->input + a->heard, ROOM - 1 - a->heard, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0 && c->sent) {
        int before = a->words;
        a->heard += got;
        c->heard_at = now();
        int end = hear_answer(a);
        all.chunks += a->words - before;
        in_time.chunks += c->heard_at < stop ? a->words - before : 0;
        if (end < 0) fail(c, BROKEN);
        else if (end) answered(c);
    } else if (got > 0) { /* bytes without a request */
        fail(c, BROKEN);
    } else if (c->sent && !ends_here(a)) {
        fail(c, CUT);
    } else { /* a server may close a connection after an answer */
        close(c->fd);
        reconnects++;
        if (!over()) dial(c);
        if (c->sent) answered(c);
    }
}

static uint32_t part(uint32_t *of, long count, double share) {
    if (!count) return 0;
    qsort(of, count, sizeof *of, by_size);
    return of[(long)((count - 1) * share)];
}

static int64_t look_around(void) { /* send due requests, fail silent connections; returns when to look again */
    int64_t time = now(), soonest = time + SECOND;
    for (int i = 0; i < many; i++) {
        Connection *c = connections + i;
        if (c->next && c->next <= time) ask(c);
        if (c->sent && time - c->heard_at > SILENCE) fail(c, SILENT);
        if (c->next && c->next < soonest) soonest = c->next;
    }
    return soonest;
}

static int busy(void) {
    for (int i = 0; i < many; i++)
        if (connections[i].sent || (connections[i].next && !over())) return 1;
    return 0;
}

int main(int count, char **words) {
    if (count != 8) {
        fprintf(stderr, "usage: client PORT CONNECTIONS MILLISECONDS MOST N CHUNKS PAUSE < request\n");
        return 2;
    }
    port = atoi(words[1]), many = atoi(words[2]), most = atol(words[4]), n = atoi(words[5]), chunks = atoi(words[6]);
    pause_time = atoi(words[7]) * (SECOND / 1000);
    if (many < 1 || many > MOST_CONNECTIONS || n < 1 || n > MOST_N) die("no such number");
    request_length = fread(request, 1, sizeof request, stdin);
    connections = calloc(many, sizeof *connections);
    first.of = calloc(MOST_TIMES, 4), last_first.of = calloc(MOST_TIMES, 4), whole.of = calloc(MOST_TIMES, 4);
    if (!connections || !first.of || !last_first.of || !whole.of) die("calloc");
    poll_fd = checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    for (int i = 0; i < many; i++) dial(connections + i);
    start = now();
    stop = start + atol(words[3]) * (SECOND / 1000);
    for (int i = 0; i < many; i++) connections[i].next = start + STAGGER * i / many;
    struct epoll_event events[256];
    int64_t look = 0;
    do {
        if (now() >= look) look = look_around();
        int64_t rest = look - now();
        int ready = epoll_wait(poll_fd, events, 256, rest > 0 ? rest / 1000000 + 1 : 0);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            hear(c);
            if (c->next && c->next < look) look = c->next;
        }
    } while (!over() || busy());
    double seconds = (stop && stop < now() ? stop - start : now() - start) / 1e9;
    printf("{\"seconds\": %.6f, \"in_time\": {\"answers\": %ld, \"chunks\": %ld}, \"all\": {\"answers\": %ld, \"chunks\": %ld}, ", seconds,
           in_time.answers, in_time.chunks, all.answers, all.chunks);
    printf("\"first_us\": %u, \"last_first_us\": %u, \"whole_us\": %u, ", part(first.of, first.count, 0.5),
           part(last_first.of, last_first.count, 0.5), part(whole.of, whole.count, 0.5));
    printf("\"whole_p99_us\": %u, \"reconnects\": %ld, \"errors\": {", part(whole.of, whole.count, 0.99), reconnects);
    for (int i = 0, some = 0; i < KINDS; i++)
        if (errors[i]) printf("%s\"%s\": %ld", some++ ? ", " : "", KIND[i], errors[i]);
    printf("}}\n");
    return 0;
}
