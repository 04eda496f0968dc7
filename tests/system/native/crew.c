/* Shares work of many sizes among threads, some of which sleep meanwhile, and checks that each unit was done once.
 * Threads of its own instead of OpenMP's, whose synchronization a sanitizer cannot see. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "amx.h"

#include "crew.h"

enum { THREADS = 4, ROUNDS = 20000, MOST = 300, ALIKE = 3 };

struct round {
    int number;
    int *done;
};

static void once_more(const void *what, int64_t begin, int64_t end) {
    const struct round *round = what;
    int *mine = own_room(end * sizeof *mine);
    for (int64_t i = begin; i < end; i++) mine[i] = 1;
    if (round->number % 500 == begin % 7) nanosleep(&(struct timespec){0, 100000}, 0);
    for (int64_t i = begin; i < end; i++) round->done[i] += mine[i];
}

static void rounds(const void *what) {
    int done[ALIKE][MOST];
    struct round rounds[ALIKE]; /* consecutive rounds have as many units, and others have other numbers */
    (void)what;
    for (int number = 0; number < ROUNDS; number++) {
        struct round *round = rounds + number % ALIKE;
        *round = (struct round){number, done[number % ALIKE]};
        int64_t count = number / ALIKE % MOST, least = 1 + number % 5, most = number % 2 ? count : least;
        for (int64_t i = 0; i < MOST; i++) round->done[i] = 0;
        share(once_more, round, count, least, most < least ? least : most);
        for (int64_t i = 0; i < MOST; i++)
            if (round->done[i] != (i < count)) {
                printf("round %d: unit %d of %d was done %d times\n", number, (int)i, (int)count, round->done[i]);
                exit(1);
            }
    }
}

static void *follows(void *crew) {
    follow(crew);
    return 0;
}

int main(void) {
    struct crew crew = {0};
    pthread_t threads[THREADS - 1];
    for (int i = 0; i < THREADS - 1; i++) pthread_create(threads + i, 0, follows, &crew);
    lead(&crew, THREADS, rounds, 0);
    for (int i = 0; i < THREADS - 1; i++) pthread_join(threads[i], 0);
    return 0;
}
