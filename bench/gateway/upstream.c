/* An OpenAI chat server that sends words at a pace and costs almost nothing: one thread, epoll, no allocation per
 * request.
 *
 *     upstream PORT      (0: any port; it is printed)
 *
 * The request's text says how to answer: "chunks=64 pace=500" asks for 64 chunks, 500 per second; without pace, for
 * as many per second as the reader takes. "think=20" asks for a stream that begins after 20 ms. It does not support n,
 * like many servers: it returns one choice. An answer that is not streamed has all chunks at once. Each event is an
 * HTTP chunk of its own, and with a pace also a write of its own; without one, BURST events share a write. Streams that
 * are due within TICK are served in one turn, like the steps of an engine.
 */
#include "common.h"

#define MOST_FDS 16384
#define MOST_INPUT 32768
#define MOST_OUTPUT 4096
#define BURST 4
#define TICK (SECOND / 4000)

#define ID "chatcmpl-0000000000000000000000000000%08x"
#define EVENT "data: {\"id\":\"" ID "\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"bench\","
#define DELTA EVENT "\"choices\":[{\"index\":0,\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s}]}\n\n"
#define USAGE EVENT "\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n"
#define WHOLE                                                                                                        \
    "{\"id\":\"" ID "\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"bench\",\"choices\":["      \
    "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\",\"refusal\":null,\"tool_calls\":[]},"        \
    "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],"                                             \
    "\"usage\":{\"prompt_tokens\":7,\"total_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":null}}"
#define JSON_HEAD "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: keep-alive\r\n\r\n"
#define SSE_HEAD                                                                                                     \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"                \
    "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
#define MODELS "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"owned_by\":\"bench\"}]}"

static const char WORDS[8][WORD + 1] = {" some", " many", " more", " most", " each", " only", " here", " then"};

typedef struct Connection {
    int fd, heard, said;                /* bytes of input, and of output that is still to be sent */
    int chunks, at, usage;              /* of the stream: how many, which one is next, whether usage was requested */
    int64_t due, period;                /* when the next event is due, and the time between two; nanoseconds */
    struct Connection *before, *after;  /* the queue of connections that wait for their time */
    uint32_t id;
    char streaming, blocked;            /* blocked: the peer's window is full */
    char input[MOST_INPUT], output[MOST_OUTPUT];
} Connection;

static Connection *connections[MOST_FDS];
static Connection waiting = {.before = &waiting, .after = &waiting}; /* a ring in the order of `due` */
static int poll_fd;
static uint32_t answers;

static void leave_queue(Connection *c) {
    if (!c->after) return;
    c->before->after = c->after;
    c->after->before = c->before;
    c->before = c->after = NULL;
}

static void enter_queue(Connection *c) { /* streams of the same pace come last, so the search ends at once */
    Connection *last = waiting.before;
    while (last != &waiting && last->due > c->due) last = last->before;
    c->before = last;
    c->after = last->after;
    last->after->before = c;
    last->after = c;
}

static void end(Connection *c) {
    leave_queue(c);
    connections[c->fd] = NULL;
    close(c->fd);
    free(c);
}

/* Send the output; returns 0 if the connection is gone. */
static int flush(Connection *c) {
    while (c->said) {
        ssize_t sent = send(c->fd, c->output, c->said, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent <= 0) return end(c), 0;
        c->said -= sent;
        memmove(c->output, c->output + sent, c->said);
    }
    if (c->blocked != (c->said > 0)) {
        c->blocked = c->said > 0;
        struct epoll_event want = {.events = EPOLLIN | (c->blocked ? EPOLLOUT : 0), .data.ptr = c};
        checked(epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &want), "epoll_ctl");
    }
    return 1;
}

static void say(Connection *c, const char *text, size_t length) {
    memcpy(c->output + c->said, text, length);
    c->said += length;
}

static void say_chunk(Connection *c, const char *text, size_t length) {
    c->said += sprintf(c->output + c->said, "%zx\r\n", length);
    say(c, text, length);
    say(c, "\r\n", 2);
}

/* Write the stream's next event: `chunks` with text, one with the finish reason, usage if requested, [DONE]. */
static void say_event(Connection *c) {
    static char plain[512];
    static int plain_length, word, id;
    char text[512];
    int step = c->at++ - c->chunks;
    if (!plain_length) { /* the usual event is formatted once; afterwards only two places in it change */
        plain_length = sprintf(plain, DELTA, 0, "\"content\":\"$word\"", "null");
        word = strchr(plain, '$') - plain;
        id = strstr(plain, "\",\"object\"") - plain - 8;
    }
    if (step < 0 && c->at > 1) {
        static const char digits[] = "0123456789abcdef";
        for (int i = 0; i < 8; i++) plain[id + i] = digits[c->id >> (28 - 4 * i) & 15];
        memcpy(plain + word, WORDS[c->at & 7], WORD);
        say_chunk(c, plain, plain_length);
    } else if (step < 0) {
        char delta[64];
        sprintf(delta, "\"role\":\"assistant\",\"content\":\"%s\"", WORDS[c->at & 7]);
        say_chunk(c, text, sprintf(text, DELTA, c->id, delta, "null"));
    } else if (step == 0) {
        say_chunk(c, text, sprintf(text, DELTA, c->id, "", "\"stop\""));
    } else if (step == 1 && c->usage) {
        say_chunk(c, text, sprintf(text, USAGE, c->id, 7 + c->chunks, c->chunks));
    } else {
        say_chunk(c, "data: [DONE]\n\n", 14);
        say(c, "0\r\n\r\n", 5);
        c->streaming = 0;
    }
}

static void look(Connection *c);

/* After a write: schedule the stream's next event, or look at the next request. A blocked connection goes on later. */
static void go_on(Connection *c) {
    if (c->blocked) return;
    if (!c->streaming) return look(c);
    int64_t time = now();
    c->due = c->due + c->period > time ? c->due + c->period : time;
    enter_queue(c);
}

/* Send what is due: one event, or without a pace several. The events that end a stream go with the finish reason. */
static void serve(Connection *c) {
    for (int some = c->period ? 1 : BURST; some && c->streaming; some--) say_event(c);
    while (c->streaming && c->at > c->chunks) say_event(c);
    if (flush(c)) go_on(c);
}

static void answer_json(Connection *c, const char *status, const char *body, size_t length) {
    c->said += sprintf(c->output + c->said, JSON_HEAD, status, length);
    say(c, body, length);
}

static void answer_chat(Connection *c, const char *body, const char *stop) {
    const char *chunks = behind(body, stop, "chunks="), *pace = behind(body, stop, "pace=");
    const char *think = behind(body, stop, "think=");
    const char *stream = behind(body, stop, "\"stream\":"), *usage = behind(body, stop, "\"include_usage\":");
    c->chunks = chunks ? atoi(chunks) : 16;
    c->id = ++answers;
    if (stream && *stream == 't') {
        c->usage = usage && *usage == 't';
        c->period = pace && atoi(pace) > 0 ? SECOND / atoi(pace) : 0;
        c->due = now() + (think ? atoi(think) * (SECOND / 1000) : 0);
        c->at = 0;
        c->streaming = 1;
        say(c, SSE_HEAD, sizeof SSE_HEAD - 1);
        return;
    }
    char text[MOST_OUTPUT / 2] = "", whole[MOST_OUTPUT];
    if (c->chunks * WORD >= (int)sizeof text - 600) c->chunks = 16;
    for (int i = 0; i < c->chunks; i++) memcpy(text + i * WORD, WORDS[i & 7], WORD);
    answer_json(c, "200 OK", whole, sprintf(whole, WHOLE, c->id, text, 7 + c->chunks, c->chunks));
}

/* Return the length of the request with its body, or 0 if it is not complete; `body` is where the body begins. */
static int whole_request(Connection *c, const char **body) {
    c->input[c->heard] = 0;
    char *blank = strstr(c->input, "\r\n\r\n");
    if (!blank) return 0;
    *body = blank + 4;
    blank[2] = 0; /* end the text at the head while its headers are read */
    const char *length = header(c->input, "content-length:"), *coding = header(c->input, "transfer-encoding:");
    blank[2] = '\r';
    if (coding) { /* a chunked body is JSON in several pieces; these requests' bodies are one piece */
        const char *last = strstr(*body, "0\r\n\r\n");
        return last ? last + 5 - c->input : 0;
    }
    int whole = *body - c->input + (length ? atoi(length) : 0);
    return whole <= c->heard ? whole : 0;
}

/* Answer the next request if it is complete. */
static void look(Connection *c) {
    const char *body;
    int length = c->streaming || c->blocked ? 0 : whole_request(c, &body);
    if (!length) return;
    if (strncmp(c->input, "POST", 4) == 0) answer_chat(c, body, c->input + length);
    else if (strstr(c->input, "/models")) answer_json(c, "200 OK", MODELS, sizeof MODELS - 1);
    else answer_json(c, "200 OK", "{}", 2); /* health checks, on any path */
    c->heard -= length;
    memmove(c->input, c->input + length, c->heard);
    if (c->streaming && c->due > now()) enter_queue(c);
    else if (c->streaming) serve(c); /* the head is sent with the first event */
    else if (flush(c)) go_on(c);
}

static void hear(Connection *c) {
    if (c->heard + 1 >= MOST_INPUT) return end(c);
    ssize_t got = recv(c->fd, c->input + c->heard, MOST_INPUT - 1 - c->heard, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return end(c);
    c->heard += got;
    look(c);
}

static void welcome(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= MOST_FDS) {
            close(fd);
            continue;
        }
        Connection *c = connections[fd] = calloc(1, sizeof *c);
        if (!c) die("calloc");
        c->fd = fd;
        send_at_once(fd);
        struct epoll_event want = {.events = EPOLLIN, .data.ptr = c};
        checked(epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &want), "epoll_ctl");
    }
}

static void serve_those_due(void) {
    int64_t until = now() + TICK / 2;
    Connection *last = waiting.before; /* connections that return to the queue in this turn come after it */
    for (int over = 0; !over && waiting.after != &waiting && waiting.after->due <= until;) {
        Connection *c = waiting.after;
        over = c == last;
        leave_queue(c);
        serve(c);
    }
}

int main(int count, char **words) {
    int listener = checked(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket"), on = 1;
    struct sockaddr_in address = loopback(count > 1 ? atoi(words[1]) : 0);
    socklen_t size = sizeof address;
    checked(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "SO_REUSEADDR");
    checked(bind(listener, (struct sockaddr *)&address, size), "bind");
    checked(listen(listener, 4096), "listen");
    checked(getsockname(listener, (struct sockaddr *)&address, &size), "getsockname");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    poll_fd = checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    struct epoll_event want = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    checked(epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &want), "epoll_ctl");
    for (;;) {
        int64_t rest = waiting.after == &waiting ? SECOND : waiting.after->due - now();
        struct timespec wait = {.tv_nsec = rest <= TICK / 2 ? 0 : rest >= SECOND ? SECOND - 1 : rest < TICK ? TICK : rest};
        int ready = epoll_pwait2(poll_fd, events, 256, &wait, NULL);
        if (ready < 0 && errno != EINTR) die("epoll_pwait2");
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) welcome(listener);
            else if (!(events[i].events & EPOLLOUT)) hear(c);
            else if (flush(c)) go_on(c);
        }
        serve_those_due();
    }
}
