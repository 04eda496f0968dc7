/* The operations between a model's products, and the products too, on a CPU: one function for each part of a step,
 * where torch has several operations, each with a start of its own. Compiled for the present machine by its own
 * compiler (build.py), once for each element type: float, or bfloat16 if BFLOAT16 is defined. Everything is computed
 * in float32 and rounded once, except attention's weights if the processor multiplies bfloat16: these are rounded
 * earlier (attend_pairs.h). A number depends only on its own row, not on the other rows or on the number of threads;
 * except in attention, where the other rows decide what is read together and in which pieces. NaN stays NaN.
 *
 * Tensors are dense unless a stride is given. Widths are multiples of 16, which the callers of build.py ensure.
 * Shapes: T tokens, H hidden, Q query heads, K key (and value) heads, G = Q / K, D head_dim, I inputs, O outputs. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vectors.h"

#include "amx.h"

#include "crew.h"

#include "rows.h"

#include "matrix.h"

#include "multiply_amx.h"

#ifdef PAIRS
#include "multiply_pairs.h"
#else
#include "multiply_floats.h"
#endif

#include "multiply_int8.h"

#include "products.h"

#include "items.h"

#ifdef PAIRS
#include "attend_amx.h"

#include "attend_pairs.h"
#else
#include "attend_floats.h"
#endif

#include "attention.h"

#include "draws.h"

#include "scored.h"

/* What one decoder layer computes with. q_norm, k_norm: both or neither; rotated: whether heads are rotated. */
struct decoder_layer {
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm;
    struct matrix qkv, output, gate_up, down;
    const struct kv_layer *kv;
    int64_t rotated;
};

/* Memory for a step: normed and added [T, H]; wide for the larger of [T, (Q + 2K) D] and [T, 2I]; narrow for the larger
 * of [T, Q D] and [T, I]; `more` for products. */
struct scratch {
    element *normed, *added, *wide, *narrow;
    void *more;
};

/* Accumulated seconds of products, of attention and of the rest. */
struct timings {
    double products, attention, rest;
};

/* Add the time since `since` to a sum, and return the present time. */
static double lap(double *sum, double since) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = now.tv_sec + now.tv_nsec * 1e-9;
    *sum += seconds - since;
    return seconds;
}

struct passed {
    const struct decoder_layer *layers;
    const struct work *const *work;
    int64_t count;
    float eps, *x;
    const float *turns;
    const int64_t *slots;
    const struct scratch *scratch;
    int64_t tokens;
    const int64_t *wanted;
    int64_t wants;
    struct timings *timings;
};

/* Move some rows of so many bytes each to the front, or back from there. `some` are in ascending order. */
static void gather_rows(void *rows, int64_t bytes, const int64_t *some, int64_t count) {
    char *at = rows;
    for (int64_t i = 0; i < count; i++)
        if (some[i] != i) memcpy(at + i * bytes, at + some[i] * bytes, bytes);
}

static void spread_rows(void *rows, int64_t bytes, const int64_t *some, int64_t count) {
    char *at = rows;
    for (int64_t i = count - 1; i >= 0; i--)
        if (some[i] != i) memcpy(at + some[i] * bytes, at + i * bytes, bytes);
}

static void pass(const void *what) {
    const struct passed *of = what;
    const struct scratch *scratch = of->scratch;
    struct timings *timings = of->timings;
    const int64_t hidden = of->layers->output.outputs;
    int64_t tokens = of->tokens;
    const element *added = 0;
    float *x = of->x;
    double ignored = 0, now = lap(&ignored, 0);
    for (int64_t i = 0; i < of->count; i++) {
        const struct decoder_layer *layer = of->layers + i;
        const struct kv_layer *kv = layer->kv;
        norm(x, added, layer->attention_norm, of->eps, scratch->normed, tokens, hidden);
        now = lap(&timings->rest, now);
        product(scratch->normed, &layer->qkv, scratch->wide, scratch->more, tokens);
        now = lap(&timings->products, now);
        rotate_store(scratch->wide, layer->q_norm, layer->k_norm, of->eps, layer->rotated ? of->turns : 0, of->slots,
                     kv->pool, kv->slots, tokens, kv->kv_heads * kv->group, kv->kv_heads, kv->dim);
        now = lap(&timings->rest, now);
        const int some = of->wants < tokens && i == of->count - 1;
        if (some && !of->wants) return;
        attention(kv, of->work[i], scratch->wide, layer->qkv.outputs, scratch->narrow, tokens);
        now = lap(&timings->attention, now);
        if (some) {
            tokens = of->wants;
            gather_rows(x, hidden * sizeof *x, of->wanted, tokens);
            gather_rows(scratch->narrow, layer->output.inputs * sizeof(element), of->wanted, tokens);
        }
        product(scratch->narrow, &layer->output, scratch->added, scratch->more, tokens);
        now = lap(&timings->products, now);
        norm(x, scratch->added, layer->mlp_norm, of->eps, scratch->normed, tokens, hidden);
        now = lap(&timings->rest, now);
        product(scratch->normed, &layer->gate_up, scratch->wide, scratch->more, tokens);
        now = lap(&timings->products, now);
        silu_mul(scratch->wide, scratch->narrow, tokens, layer->down.inputs);
        now = lap(&timings->rest, now);
        product(scratch->narrow, &layer->down, scratch->added, scratch->more, tokens);
        now = lap(&timings->products, now);
        added = scratch->added;
    }
    for (int64_t i = 0; i < tokens * hidden; i += LANES) store_floats(x + i, load_floats(x + i) + load(added + i));
    if (tokens < of->tokens) spread_rows(x, hidden * sizeof *x, of->wanted, tokens);
    lap(&timings->rest, now);
}

/* Take x [T, H] float32 through several layers, in place, in one call; work[i] is layer i's. turns, slots: as for
 * rotate_store. wanted [wants]: the tokens whose results count, in ascending order, if these are not all T; behind the
 * attention of the last layer only these are computed, and nothing meaningful is left of the others in x. */
void layers(const struct decoder_layer *decoder, const struct work *const *work, int64_t count, float eps, float *x,
            const float *turns, const int64_t *slots, const struct scratch *scratch, int64_t tokens,
            const int64_t *wanted, int64_t wants, struct timings *timings) {
    const struct passed of = {decoder, work, count, eps, x, turns, slots, scratch, tokens, wanted, wants, timings};
    together(pass, &of);
}
