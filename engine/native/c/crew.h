/* Work shared among the threads of a step, one crew per step. Any thread may lose its processor at any time.
 *
 * One thread leads: it runs through the step and shares what several threads can do at once. The others take pieces of
 * that, large ones first and smaller ones at the end. A thread that is late, or whose processor does other work, takes
 * fewer pieces, and until the end of the step no thread waits for one that has taken none (guided self-scheduling:
 * Polychronopoulos and Kuck, 1987). OpenMP's own way ends each loop by waiting for all threads. */

#include <sched.h>
#include <stdatomic.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Does units begin .. end - 1 of shared work. */
typedef void (*doing)(const void *what, int64_t begin, int64_t end);

/* units: the number of units of the present work and, in the lower half, how many of them are taken; all are taken if
 * there is no work. left: units that are not done yet. over: nothing more will be shared. The other fields describe the
 * work: they are written while there is none, and read by threads that have taken units of it; threads is written once,
 * before anything is shared. */
struct crew {
    _Alignas(64) _Atomic uint64_t units;
    _Alignas(64) _Atomic int64_t left;
    _Atomic int over;
    doing doit;
    const void *what;
    int64_t threads;
    _Atomic int64_t least, most; /* of a piece; read before one is taken, so they may be those of earlier work */
};

enum { TAKEN_BITS = 32 };

/* The crew that this thread leads; 0 if none. */
static _Thread_local struct crew *led;

/* How often a thread checks for work before it yields its processor: 10 to 20 us on x86-64. */
enum { LOOKS = 1 << 9 };

/* Wait a little, for the n-th time in a row. */
static inline void wait_a_little(int64_t n) {
    if (n % LOOKS == LOOKS - 1) sched_yield();
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Memory of this thread's own, which it keeps until its crew ends. */
static _Thread_local struct {
    void *at;
    int64_t bytes;
} own;

/* Return that many bytes of this thread's own memory, aligned for any vector; 0 if it has none. Contents are lost. */
__attribute__((unused)) static void *own_room(int64_t bytes) {
    if (own.bytes < bytes) {
        free(own.at);
        own.at = aligned_alloc(64, (bytes + 63) / 64 * 64);
        own.bytes = own.at ? bytes : 0;
    }
    return own.at;
}

static void leave_room(void) {
    release_tiles();
    free(own.at);
    own.at = 0;
    own.bytes = 0;
}

/* Take pieces of the shared work and do them until none is left; return the number of units done. */
static int64_t take_part(struct crew *crew) {
    int64_t done = 0;
    uint64_t units = atomic_load_explicit(&crew->units, memory_order_acquire);
    for (;;) {
        int64_t taken = (uint32_t)units, there = (int64_t)(units >> TAKEN_BITS) - taken;
        if (!there) break;
        int64_t some = there * 3 / (4 * crew->threads);
        int64_t least = atomic_load_explicit(&crew->least, memory_order_relaxed);
        int64_t most = atomic_load_explicit(&crew->most, memory_order_relaxed);
        if (some > most) some = most;
        if (some < least) some = least;
        if (some > there) some = there;
        if (atomic_compare_exchange_weak_explicit(&crew->units, &units, units + some, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            crew->doit(crew->what, taken, taken + some);
            done += some;
            units = atomic_load_explicit(&crew->units, memory_order_acquire);
        }
    }
    if (done) atomic_fetch_sub_explicit(&crew->left, done, memory_order_release);
    return done;
}

/* Take part in all shared work until the leader has finished. */
__attribute__((unused)) static void follow(struct crew *crew) {
    for (int64_t n = 0; !atomic_load_explicit(&crew->over, memory_order_acquire); n++) {
        if (take_part(crew)) n = 0;
        wait_a_little(n);
    }
    leave_room();
}

/* Lead that many threads, this one included, through `through`. */
static void lead(struct crew *crew, int64_t threads, void (*through)(const void *), const void *what) {
    crew->threads = threads;
    led = crew;
    through(what);
    led = 0;
    leave_room();
    atomic_store_explicit(&crew->over, 1, memory_order_release);
}

/* Run `through` with as many threads as there are. */
static void together(void (*through)(const void *), const void *what) {
    struct crew crew = {0};
#ifdef _OPENMP
#pragma omp parallel
    if (omp_get_thread_num())
        follow(&crew);
    else
        lead(&crew, omp_get_num_threads(), through, what);
#else
    lead(&crew, 1, through, what);
#endif
}

/* Work that is shared outside of a crew. */
struct alone {
    doing doit;
    const void *what;
    int64_t count, least, most;
};

static void go_alone(const void *what);

/* Do units 0 .. count - 1, fewer than 2^32, with all threads of the crew that this thread leads, or of a crew for this
 * work alone. Pieces have at least `least` and at most `most` units, except the last one. `doit` must not share work
 * itself; least is 1 or more. */
static void share(doing doit, const void *what, int64_t count, int64_t least, int64_t most) {
    struct crew *crew = led;
    if (count <= least) {
        doit(what, 0, count);
        if (!crew) leave_room();
        return;
    }
    if (!crew) {
        together(go_alone, &(struct alone){doit, what, count, least, most});
        return;
    }
    crew->doit = doit;
    crew->what = what;
    atomic_store_explicit(&crew->least, least, memory_order_relaxed);
    atomic_store_explicit(&crew->most, most, memory_order_relaxed);
    atomic_store_explicit(&crew->left, count, memory_order_relaxed);
    atomic_store_explicit(&crew->units, (uint64_t)count << TAKEN_BITS, memory_order_release);
    take_part(crew);
    for (int64_t n = 0; atomic_load_explicit(&crew->left, memory_order_acquire); n++) wait_a_little(n);
}

static void go_alone(const void *what) {
    const struct alone *of = what;
    share(of->doit, of->what, of->count, of->least, of->most);
}
