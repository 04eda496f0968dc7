/* What this benchmark's upstream and client share: time, sockets, access to HTTP heads. */
#ifndef COMMON_H
#define COMMON_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WORD 5 /* letters of each chunk's text; the client counts them */
#define SECOND 1000000000LL

static inline int64_t now(void) { /* nanoseconds of a monotonic clock */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline int checked(int result, const char *what) {
    if (result < 0) die(what);
    return result;
}

static inline void send_at_once(int fd) {
    int on = 1;
    checked(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
}

static inline struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Return what follows the next `key` in the text and the blanks after it; NULL if there is no such key. */
static inline const char *behind(const char *text, const char *end, const char *key) {
    size_t length = strlen(key);
    const char *found = text < end ? memmem(text, end - text, key, length) : NULL;
    if (!found) return NULL;
    found += length;
    while (found < end && *found == ' ') found++;
    return found;
}

/* Return the value of a header in a head that ends with a 0; NULL if it is not there. `name` ends with a colon. */
static inline const char *header(const char *head, const char *name) {
    size_t length = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, length) == 0) return line + length + strspn(line + length, " ");
    }
    return NULL;
}

#endif
