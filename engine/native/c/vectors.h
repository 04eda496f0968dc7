/* Vectors as wide as the processor's registers, and what is done with one at a time. */

#if defined __SSE__
#include <immintrin.h>
#endif

/* Numbers in a register, and how many of those there are. The first of AVX-512 (Knights Landing) has no instructions for
 * bytes and halves in so wide ones. */
#if defined __AVX512BW__
enum { LANES = 16, REGISTERS = 32 };
#elif defined __AVX__
enum { LANES = 8, REGISTERS = 16 };
#elif defined __aarch64__
enum { LANES = 4, REGISTERS = 32 };
#else
enum { LANES = 4, REGISTERS = 16 };
#endif
#define INLINE __attribute__((always_inline)) static inline

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int32_t ints_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float floats_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint16_t halves_at __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* bfloat16 is the upper half of a float. By their instructions, for of the conversions of vectors GCC 12 makes three each. */
static inline vec load_halves(const uint16_t *at) {
#if defined __AVX512BW__
    words wide = (words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)at));
#elif defined __AVX2__
    words wide = (words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)at));
#else
    words wide = __builtin_convertvector((halves)*(const halves_at *)at, words);
#endif
    return (vec)(wide << 16);
}

#ifdef BFLOAT16
typedef uint16_t element;

static inline vec load(const element *at) { return load_halves(at); }

/* Rounded to the nearest, to the even one of two; what is no number stays none. */
static inline void store(element *at, vec x) {
    words bits = (words)x, none = (words)(x != x);
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(halves_at *)at = __builtin_convertvector((rounded & ~none) | (0x7fc0 & none), halves);
}
#else
typedef float element;

static inline vec load(const element *at) { return *(const floats_at *)at; }
static inline void store(element *at, vec x) { *(floats_at *)at = x; }
#endif

static inline vec load_floats(const float *at) { return *(const floats_at *)at; }
static inline void store_floats(float *at, vec x) { *(floats_at *)at = x; }
static inline ints load_ints(const void *at) { return *(const ints_at *)at; }
static inline vec all(float x) { return x - (vec){0}; }

/* Keeps a vector in a register that several products take. GCC would read it from memory again for each, and beside
 * sixteen registers those reads take longer than the products. */
#if defined __AVX2__ && !defined __AVX512F__
#define KEEP(vector) __asm__("" : "+x"(vector))
#else
#define KEEP(vector) (void)(vector)
#endif

/* Of each two numbers the larger, or the smaller; b's where they are equal, or one is none. That is what x86's instructions
 * do, and GCC 12 makes of the comparison three others, each of which waits for the one before. */
#if defined __AVX512BW__
static inline vec larger(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec smaller(vec a, vec b) { return _mm512_min_ps(a, b); }
#elif defined __AVX__
static inline vec larger(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec smaller(vec a, vec b) { return _mm256_min_ps(a, b); }
#elif defined __SSE__
static inline vec larger(vec a, vec b) { return _mm_max_ps(a, b); }
static inline vec smaller(vec a, vec b) { return _mm_min_ps(a, b); }
#else
static inline vec larger(vec a, vec b) {
    ints first = a > b;
    return (vec)(((ints)a & first) | ((ints)b & ~first));
}
static inline vec smaller(vec a, vec b) { return -larger(-a, -b); }
#endif

static inline vec magnitude(vec x) { return (vec)((ints)x & 0x7fffffff); }

typedef float four __attribute__((vector_size(16)));

/* x's fours, added up: the first half and the second, and so on. */
static inline four folded(vec x) {
    four parts[LANES / 4];
    memcpy(parts, &x, sizeof parts);
    for (int half = LANES / 8; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

static inline float sum(vec x) {
    four part = folded(x);
    return (part[0] + part[1]) + (part[2] + part[3]);
}

static inline float largest(vec x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* To the nearest whole number, to the even one of two, for |x| < 2^22: behind 1.5 * 2^23 no bit is left for a
 * fraction. */
static const float ROUNDING = 12582912.0f;

/* exp(x) of `count` vectors in place, within two units of the last place; x is cut to what float32 can hold: -87 to 88.
 * x = n ln 2 + r with |r| <= ln 2 / 2, where Taylor's first eight terms are exact enough; 2^n is the exponent's bits. Each
 * step of one vector waits for the one before; those of several lie between each other. */
INLINE void exponentials_of(vec *x, const int count) {
    static const float taylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    enum { MOST = 4 };
    vec r[MOST], y[MOST], shifted[MOST];
#define EACH _Pragma("GCC unroll 4") for (int i = 0; i < count; i++)
    EACH x[i] = larger(all(-87.0f), x[i]);
    EACH x[i] = smaller(all(88.0f), x[i]);
    EACH shifted[i] = x[i] * 1.44269504f + ROUNDING;
    EACH y[i] = shifted[i] - ROUNDING;
    EACH r[i] = x[i] - y[i] * 0.693359375f; /* ln 2 in two parts, the first of few bits, so that n times it is exact */
    EACH r[i] = r[i] + y[i] * 2.12194440e-4f;
    EACH y[i] = r[i] * (1.0f / 5040) + taylor[0];
    _Pragma("GCC unroll 6") for (int term = 1; term < 7; term++) EACH y[i] = y[i] * r[i] + taylor[term];
    EACH x[i] = y[i] * (vec)(((ints)shifted[i] << 23) + (127 << 23));
#undef EACH
}

static inline vec exponential(vec x) {
    exponentials_of(&x, 1);
    return x;
}

#if defined BFLOAT16 && defined __AVX512BF16__
/* The processor multiplies bfloat16, and adds up two products in one instruction: each lane has a pair. */
#define PAIRS

/* By its name, as that of add_products in products.h. */
INLINE vec add_pairs(vec sums, ints a, ints b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
}

/* In all lanes the same. */
INLINE ints pair_at(const void *at) {
    int32_t pair;
    memcpy(&pair, at, sizeof pair);
    return pair - (ints){0};
}

/* Of a's numbers and b's. */
INLINE ints pairs_of(const element *a, const element *b) {
    ints low = (ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)a));
    ints high = (ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)b));
    return low | high << 16;
}

/* The same of floats, which are rounded to the nearest, to the even one of two. */
INLINE ints rounded_pairs(vec a, vec b) {
    static const uint16_t order[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i apart = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    return (ints)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), apart);
}

/* 2^x, within 8e-5 of it, which is a twentieth of what bfloat16 rounds off; 0 for less than float32 can hold. Of the
 * polynomials of the third degree that which errs the least in [0, 1), relatively. */
INLINE vec power_of_two(vec x) {
    vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor(x) */
    vec y = r * 0.07802455f + 0.22606718f;
    y = y * r + 0.69583349f;
    y = y * r + 0.99992523f;
    return _mm512_scalef_ps(y, x);
}

/* Of whole numbers, exactly. */
INLINE vec whole_power_of_two(vec x) { return _mm512_scalef_ps(all(1), x); }

/* The next whole number that is not less. */
INLINE vec upwards(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
#endif
