/* A load client that believes nothing: every answer is read to its end, and counts only when it is whole.
 *
 *     client PORT CONNECTIONS MILLISECONDS MOST N CHUNKS PAUSE < request
 *
 * The request is sent as it is, head and body, on CONNECTIONS connections at once; each sends the next one when the answer is
 * there, PAUSE milliseconds later. Nothing new is sent once MILLISECONDS are over or MOST answers are there (0: any number), and
 * what is under way is read to its end, so that what a server has spent can be divided by what it has done. An answer, JSON or a
 * stream, is whole with status 200, N choices of CHUNKS words with one finish_reason each, and a stream's [DONE] as its
 * last event. One line of JSON is printed: `in_time` counts what came within MILLISECONDS, `all` everything; times are
 * microseconds from the request's last byte, of the first word, of the first word of the last choice, and of the end.
 */
#include "common.h"

#define MOST_CONNECTIONS 4096
#define MOST_N 128
#define MOST_TIMES (1 << 22)
#define ROOM (1 << 16)
#define SILENCE (20 * SECOND)
#define STAGGER (SECOND / 20) /* over which the first requests are spread */
#define ENOUGH_ERRORS 200

enum { CONNECT, STATUS, CUT, BROKEN, INCOMPLETE, SILENT, KINDS };
static const char *KIND[KINDS] = {"connect", "status", "cut", "broken", "incomplete", "silent"};

typedef struct {
    int fd, heard, body, left, status; /* bytes in `input`, where the body begins, what is left of it or of its chunk */
    int text, choices, finished;       /* bytes of events that are not read yet; choices that began and ended */
    char chunked, to_end, stream, done, between;
    int said[MOST_N], ended[MOST_N];   /* letters of each choice, and its reasons of the end */
    int64_t sent, heard_at, first, last_first, next;
    char input[ROOM], events[ROOM];
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
    c->heard = c->body = c->left = c->status = c->text = c->choices = c->finished = 0;
    c->chunked = c->to_end = c->stream = c->done = c->between = 0;
    c->first = c->last_first = 0;
    memset(c->said, 0, n * sizeof *c->said);
    memset(c->ended, 0, n * sizeof *c->ended);
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
        const char *text = c->text ? c->events : c->input;
        int length = c->text ? c->text : c->heard;
        fprintf(stderr, "status %d, %d of %d choices ended, the first has %d letters: %.*s\n", c->status, c->finished, n, c->said[0],
                length < 600 ? length : 600, text);
    }
    errors[kind]++;
    close(c->fd);
    c->sent = 0;
    c->fd = -1;
    long sum = 0;
    for (int i = 0; i < KINDS; i++) sum += errors[i];
    if (sum >= ENOUGH_ERRORS) stop = 0; /* it is no result any more */
    if (!over()) {
        dial(c);
        c->next = now() + SECOND / 100;
    }
}

static void answered(Connection *c) {
    int64_t time = now();
    if (c->status != 200) return fail(c, STATUS);
    int right = c->finished == n && c->choices == n && (!c->stream || c->done);
    for (int i = 0; i < n; i++) right &= c->said[i] == chunks * WORD && c->ended[i] == 1;
    if (!right) return fail(c, INCOMPLETE);
    in_time.answers += time < stop;
    all.answers++;
    if (whole.count < MOST_TIMES) {
        whole.of[whole.count++] = (time - c->sent) / 1000;
        if (c->stream) {
            first.of[first.count++] = (c->first - c->sent) / 1000;
            last_first.of[last_first.count++] = (c->last_first - c->sent) / 1000;
        }
    }
    c->sent = 0;
    c->next = time + pause_time;
    if (!pause_time) ask(c);
}

/* What one choice says, from its index to the next one's or the end; a server may write index or text first. */
static int hear_choice(Connection *c, const char *text, const char *end, const char *at) {
    int index = atoi(at);
    const char *said = behind(text, end, "\"content\":"), *why = behind(text, end, "\"finish_reason\":");
    if (index < 0 || index >= n) return 0;
    if (said && *said == '"') {
        const char *close = memchr(said + 1, '"', end - said - 1);
        if (!close) return 0;
        int letters = close - said - 1;
        if (letters && !c->said[index]) {
            c->last_first = now();
            if (!c->choices++) c->first = c->last_first;
        }
        c->said[index] += letters;
        all.chunks += letters / WORD;
        in_time.chunks += c->heard_at < stop ? letters / WORD : 0;
    }
    if (why && *why == '"') {
        c->ended[index]++;
        c->finished++;
    }
    return 1;
}

/* JSON with one choice after the other, the text of a stream's event among it; gives 0 where it is not right. */
static int hear_json(Connection *c, const char *text, const char *end) {
    const char *list = behind(text, end, "\"choices\":");
    if (!list) return behind(text, end, "\"error\"") == NULL;
    const char *index = behind(list, end, "\"index\":"), *from = list;
    while (index) {
        const char *next = n > 1 ? behind(index, end, "\"index\":") : NULL;
        if (!hear_choice(c, from, next ? next : end, index)) return 0;
        from = index = next;
    }
    return 1;
}

static int hear_events(Connection *c) {
    char *from = c->events, *end = c->events + c->text, *line;
    for (; (line = memchr(from, '\n', end - from)); from = line + 1) {
        if (line - from < 6 || strncmp(from, "data:", 5) != 0) continue; /* comments, names of events, blank lines */
        if (c->done) return 0;
        const char *data = from + 5 + (from[5] == ' ');
        if (strncmp(data, "[DONE]", 6) == 0) c->done = 1;
        else if (!hear_json(c, data, line)) return 0;
    }
    c->text = end - from;
    memmove(c->events, from, c->text);
    return 1;
}

static int hear_body(Connection *c, const char *text, int length) {
    if (c->text + length >= ROOM) return 0;
    memcpy(c->events + c->text, text, length);
    c->text += length;
    return c->stream && c->status == 200 ? hear_events(c) : 1;
}

static int hear_head(Connection *c) {
    c->input[c->heard] = 0;
    char *blank = strstr(c->input, "\r\n\r\n");
    if (!blank) return 0;
    blank[2] = 0;
    const char *length = header(c->input, "content-length:"), *coding = header(c->input, "transfer-encoding:");
    const char *type = header(c->input, "content-type:");
    blank[2] = '\r';
    c->status = atoi(c->input + 9);
    c->body = blank + 4 - c->input;
    c->chunked = coding && strncasecmp(coding, "chunked", 7) == 0;
    c->left = length ? atoi(length) : 0;
    c->to_end = !length && !c->chunked;
    c->stream = type && strncasecmp(type, "text/event-stream", 17) == 0;
    return 1;
}

/* What has come of the body, out of its HTTP chunks. Gives 1 at its end, 0 where more is to come, -1 where it is wrong. */
static int hear_rest(Connection *c) {
    char *from = c->input + c->body, *end = c->input + c->heard;
    int over = 0;
    while (!over) {
        if (c->chunked && !c->left) {
            char *line = memchr(from, '\n', end - from), *digits;
            if (!line) break;
            if (c->between) { /* the line's end behind a chunk */
                c->between = 0;
                from = line + 1;
                continue;
            }
            c->left = strtol(from, &digits, 16);
            if (digits == from) return -1;
            if (!c->left) {
                if (end - line < 3) {
                    c->left = 0;
                    break;
                }
                over = 1;
            }
            from = line + 1;
        } else {
            int here = c->to_end || end - from < c->left ? end - from : c->left;
            if (!hear_body(c, from, here)) return -1;
            from += here;
            c->left -= c->to_end ? 0 : here;
            if (c->left || c->to_end) break;
            c->between = c->chunked;
            over = !c->chunked;
        }
    }
    if (over && !c->stream && c->status == 200 && !hear_json(c, c->events, c->events + c->text)) return -1;
    c->heard = over ? 0 : end - from; /* of the body only what is not understood yet is kept */
    memmove(c->input + c->body * !over, from, over ? 0 : c->heard);
    c->heard += over ? 0 : c->body;
    return over;
}

static void hear(Connection *c) {
    ssize_t got = recv(c->fd, c->input + c->heard, ROOM - 1 - c->heard, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (!c->sent) { /* nothing was asked: the server closes the connection, or says what nobody wants to hear */
        if (got > 0) return fail(c, BROKEN);
        close(c->fd);
        reconnects++;
        dial(c);
        return;
    }
    if (got <= 0) {
        if (c->to_end && c->body && (!c->stream || c->done)) {
            if (!c->stream && !hear_json(c, c->events, c->events + c->text)) return fail(c, BROKEN);
            close(c->fd);
            reconnects++;
            dial(c);
            return answered(c);
        }
        return fail(c, CUT);
    }
    c->heard += got;
    c->heard_at = now();
    if (!c->body && !hear_head(c)) return;
    int end = hear_rest(c);
    if (end < 0) fail(c, BROKEN);
    else if (end) answered(c);
}

static uint32_t part(uint32_t *of, long count, double share) {
    if (!count) return 0;
    qsort(of, count, sizeof *of, by_size);
    return of[(long)((count - 1) * share)];
}

static int64_t look_around(void) { /* whose turn it is to ask, and who is silent; gives when there is something to look for */
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
