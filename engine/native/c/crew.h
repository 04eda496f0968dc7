/* Work shared among threads that may be kept from their processors, one for all of a step.
 *
 * One thread leads: it goes through all that is to be done and shares what several can do at once; the others take pieces
 * of that as they come, large ones first and smaller ones at the end. So a thread that is late, or whose processor does
 * other things meanwhile, takes fewer, and until the end of it all nobody waits for one that has taken none (guided
 * self-scheduling: Polychronopoulos and Kuck, 1987). What OpenMP has for this ends each loop by waiting for all. */

#include <sched.h>
#include <stdatomic.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Does units begin .. end - 1 of what there is to do. */
typedef void (*doing)(const void *what, int64_t begin, int64_t end);

/* units: how many there are of what is shared now, and in the lower half how many of them are taken: all where there is
 * nothing to do. left: those that are not done yet. over: nothing more is shared. What they are of is written while there
 * is nothing to do, and read by who has taken some of them; threads: once, before anything is shared. */
struct crew {
    _Alignas(64) _Atomic uint64_t units;
    _Alignas(64) _Atomic int64_t left;
    _Atomic int over;
    doing doit;
    const void *what;
    int64_t threads;
    _Atomic int64_t least, most; /* of a piece; read before it is taken, and so maybe those of what was shared before */
};

enum { TAKEN_BITS = 32 };

/* The crew that this thread leads. */
static _Thread_local struct crew *led;

/* So often a thread looks again before it offers its processor to others: 10 to 20 us on x86-64. */
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

/* Room of this thread's own, which it has until the crew parts. */
static _Thread_local struct {
    void *at;
    int64_t bytes;
} own;

/* So much room of this thread's own, for a vector of any width; 0 where there is none. What was in it is lost. */
__attribute__((unused)) static void *own_room(int64_t bytes) {
    if (own.bytes < bytes) {
        free(own.at);
        own.at = aligned_alloc(64, (bytes + 63) / 64 * 64);
        own.bytes = own.at ? bytes : 0;
    }
    return own.at;
}

static void leave_room(void) {
    free(own.at);
    own.at = 0;
    own.bytes = 0;
}

/* Take pieces of what is shared, and do them, until none is left; gives how many units they were. */
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

/* Take part in all that is shared until the leader is through. */
__attribute__((unused)) static void follow(struct crew *crew) {
    for (int64_t n = 0; !atomic_load_explicit(&crew->over, memory_order_acquire); n++) {
        if (take_part(crew)) n = 0;
        wait_a_little(n);
    }
    leave_room();
}

/* Lead so many threads, this one counted, through `through`. */
static void lead(struct crew *crew, int64_t threads, void (*through)(const void *), const void *what) {
    crew->threads = threads;
    led = crew;
    through(what);
    led = 0;
    leave_room();
    atomic_store_explicit(&crew->over, 1, memory_order_release);
}

/* Go through `through` with as many threads as there are. */
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

/* What is shared outside of a crew. */
struct alone {
    doing doit;
    const void *what;
    int64_t count, least, most;
};

static void go_alone(const void *what);

/* Do units 0 .. count - 1, fewer than 2^32, in pieces of at least and at most so many, but for the last: all threads of the
 * crew that this one leads, or of one for this alone. `doit` shares nothing itself; least is 1 or more. */
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
