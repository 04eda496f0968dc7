/* One answer as it is read: HTTP, a stream's events or JSON, and the text of each choice. Sockets are elsewhere. */
#ifndef ANSWER_H
#define ANSWER_H

#include "common.h"

#define MOST_N 128
#define ROOM (1 << 16)

typedef struct {
    int n, status;
    int heard, body, left;           /* bytes in `input`, where the body begins, what is left of it or of its chunk */
    int text, words;                 /* bytes of events that are not parsed yet; words of all choices so far */
    int began, finished;             /* numbers of choices */
    char chunked, to_end, stream, done, between;
    int said[MOST_N], ended[MOST_N]; /* letters, and the number of finish reasons, of each choice */
    int64_t first, last_first;       /* when the first choice had its first word, and when the last one had it */
    char input[ROOM], events[ROOM];
} Answer;

/* Parse one choice, from its index to the next one's or the end; a server may write the index or the text first. */
static int hear_choice(Answer *a, const char *text, const char *end, const char *at) {
    int index = atoi(at);
    const char *said = behind(text, end, "\"content\":"), *why = behind(text, end, "\"finish_reason\":");
    if (index < 0 || index >= a->n) return 0;
    if (said && *said == '"') {
        const char *close = memchr(said + 1, '"', end - said - 1);
        if (!close) return 0;
        int letters = close - said - 1;
        if (letters && !a->said[index]) {
            a->last_first = now();
            if (!a->began++) a->first = a->last_first;
        }
        a->said[index] += letters;
        a->words += letters / WORD;
    }
    if (why && *why == '"') {
        a->ended[index]++;
        a->finished++;
    }
    return 1;
}

/* Parse JSON with one choice after the other, as in an answer or in an event; returns 0 if it is wrong. */
static int hear_json(Answer *a, const char *text, const char *end) {
    const char *list = behind(text, end, "\"choices\":");
    if (!list) return behind(text, end, "\"error\"") == NULL;
    const char *index = behind(list, end, "\"index\":"), *from = list;
    while (index) {
        const char *next = a->n > 1 ? behind(index, end, "\"index\":") : NULL;
        if (!hear_choice(a, from, next ? next : end, index)) return 0;
        from = index = next;
    }
    return 1;
}

static int hear_events(Answer *a) {
    char *from = a->events, *end = a->events + a->text, *line;
    for (; (line = memchr(from, '\n', end - from)); from = line + 1) {
        if (line - from < 6 || strncmp(from, "data:", 5) != 0) continue; /* comments, event names, blank lines */
        if (a->done) return 0;
        const char *data = from + 5 + (from[5] == ' ');
        if (strncmp(data, "[DONE]", 6) == 0) a->done = 1;
        else if (!hear_json(a, data, line)) return 0;
    }
    a->text = end - from;
    memmove(a->events, from, a->text);
    return 1;
}

static int hear_body(Answer *a, const char *text, int length) {
    if (a->text + length >= ROOM) return 0;
    memcpy(a->events + a->text, text, length);
    a->text += length;
    return a->stream && a->status == 200 ? hear_events(a) : 1;
}

static int hear_head(Answer *a) {
    a->input[a->heard] = 0;
    char *blank = strstr(a->input, "\r\n\r\n");
    if (!blank) return 0;
    blank[2] = 0;
    const char *length = header(a->input, "content-length:"), *coding = header(a->input, "transfer-encoding:");
    const char *type = header(a->input, "content-type:");
    blank[2] = '\r';
    a->status = atoi(a->input + 9);
    a->body = blank + 4 - a->input;
    a->chunked = coding && strncasecmp(coding, "chunked", 7) == 0;
    a->left = length ? atoi(length) : 0;
    a->to_end = !length && !a->chunked;
    a->stream = type && strncasecmp(type, "text/event-stream", 17) == 0;
    return 1;
}

/* Parse what has arrived of the body, in HTTP chunks or not. Returns 1 at its end, 0 before it, -1 if it is wrong. */
static int hear_rest(Answer *a) {
    char *from = a->input + a->body, *end = a->input + a->heard;
    int over = 0;
    while (!over) {
        if (a->chunked && !a->left) {
            char *line = memchr(from, '\n', end - from), *digits;
            if (!line) break;
            if (a->between) { /* the line break after a chunk */
                a->between = 0;
                from = line + 1;
                continue;
            }
            a->left = strtol(from, &digits, 16);
            if (digits == from) return -1;
            if (!a->left) {
                if (end - line < 3) {
                    a->left = 0;
                    break;
                }
                over = 1;
            }
            from = line + 1;
        } else {
            int here = a->to_end || end - from < a->left ? end - from : a->left;
            if (!hear_body(a, from, here)) return -1;
            from += here;
            a->left -= a->to_end ? 0 : here;
            if (a->left || a->to_end) break;
            a->between = a->chunked;
            over = !a->chunked;
        }
    }
    if (over && !a->stream && a->status == 200 && !hear_json(a, a->events, a->events + a->text)) return -1;
    a->heard = over ? 0 : end - from; /* keep only the part of the body that is not parsed yet */
    memmove(a->input + a->body * !over, from, over ? 0 : a->heard);
    a->heard += over ? 0 : a->body;
    return over;
}

/* Parse after new bytes in `input`: 1 if the answer is complete, 0 if more is to come, -1 if it is wrong. */
static int hear_answer(Answer *a) {
    if (!a->body && !hear_head(a)) return 0;
    return hear_rest(a);
}

/* At the end of the connection: return whether the answer ends there too. */
static int ends_here(Answer *a) {
    if (!a->to_end || !a->body) return 0;
    return a->stream ? a->done : hear_json(a, a->events, a->events + a->text);
}

/* Return whether each choice has that many words and one end, and a stream has had its [DONE]. */
static int is_whole(const Answer *a, int words) {
    int right = !a->stream || a->done;
    for (int i = 0; i < a->n; i++) right &= a->said[i] == words * WORD && a->ended[i] == 1;
    return right;
}

static void expect(Answer *a, int n) {
    a->n = n;
    a->heard = a->body = a->left = a->status = a->text = a->began = a->finished = a->words = 0;
    a->chunked = a->to_end = a->stream = a->done = a->between = 0;
    a->first = a->last_first = 0;
    memset(a->said, 0, n * sizeof *a->said);
    memset(a->ended, 0, n * sizeof *a->ended);
}

#endif
