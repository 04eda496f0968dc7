/* The operations between a model's products, and the products too, on a CPU: one function for each part of a step,
 * where torch has several operations, each with a start of its own. Compiled for the present machine by its own
 * compiler (build.py), once for each element type: float, or bfloat16 if BFLOAT16 is defined. Everything is computed
 * in float32 and rounded once, except attention's weights if the processor multiplies bfloat16: these are rounded
 * earlier (attend_pairs.h). A number depends only on its own row, not on the other rows or on the number of threads;
 * except in attention, where the other rows decide what is read together and in which pieces. NaN stays NaN.
 *
 * Tensors are dense unless a stride is given. Widths are multiples of 16, which the callers of build.py ensure.
 * Shapes: T tokens, H hidden, Q query heads, K key (and value) heads, G = Q / K, D head_dim, I inputs, O outputs. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vectors.h"

#include "crew.h"

#include "rows.h"

#include "products.h"

#include "items.h"

#ifdef PAIRS
#include "attend_pairs.h"
#else
#include "attend_floats.h"
#endif

#include "attention.h"

#include "draws.h"

/* What one decoder layer computes with. q_norm, k_norm: both or neither; turned: whether heads are rotated. */
struct block {
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm;
    struct matrix qkv, output, gate_up, down;
    const struct layer *layer;
    int64_t turned;
};

/* Memory for a step: normed and added [T, H]; wide for the larger of [T, (Q + 2K) D] and [T, 2I]; narrow for the larger
 * of [T, Q D] and [T, I]; `more` for products. */
struct room {
    element *normed, *added, *wide, *narrow;
    void *more;
};

/* Accumulated seconds of products, of attention and of the rest. */
struct spent {
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
    const struct block *blocks;
    const struct work *const *work;
    int64_t count;
    float eps, *x;
    const float *turns;
    const int64_t *slots;
    const struct room *room;
    int64_t tokens;
    struct spent *spent;
};

static void pass(const void *what) {
    const struct passed *of = what;
    const struct room *room = of->room;
    struct spent *spent = of->spent;
    const int64_t hidden = of->blocks->output.outputs, tokens = of->tokens;
    const element *added = 0;
    float *x = of->x;
    double ignored = 0, now = lap(&ignored, 0);
    for (int64_t i = 0; i < of->count; i++) {
        const struct block *block = of->blocks + i;
        const struct layer *layer = block->layer;
        norm(x, added, block->attention_norm, of->eps, room->normed, tokens, hidden);
        now = lap(&spent->rest, now);
        product(room->normed, &block->qkv, room->wide, room->more, tokens);
        now = lap(&spent->products, now);
        rotate_store(room->wide, block->q_norm, block->k_norm, of->eps, block->turned ? of->turns : 0, of->slots,
                     layer->pool, layer->slots, tokens, layer->kv_heads * layer->group, layer->kv_heads, layer->dim);
        now = lap(&spent->rest, now);
        attention(layer, of->work[i], room->wide, block->qkv.outputs, room->narrow, tokens);
        now = lap(&spent->attention, now);
        product(room->narrow, &block->output, room->added, room->more, tokens);
        now = lap(&spent->products, now);
        norm(x, room->added, block->mlp_norm, of->eps, room->normed, tokens, hidden);
        now = lap(&spent->rest, now);
        product(room->normed, &block->gate_up, room->wide, room->more, tokens);
        now = lap(&spent->products, now);
        silu_mul(room->wide, room->narrow, tokens, block->down.inputs);
        now = lap(&spent->rest, now);
        product(room->narrow, &block->down, room->added, room->more, tokens);
        now = lap(&spent->products, now);
        added = room->added;
    }
    for (int64_t i = 0; i < tokens * hidden; i += LANES) store_floats(x + i, load_floats(x + i) + load(added + i));
    lap(&spent->rest, now);
}

/* Take x [T, H] float32 through several layers, in place, in one call; work[i] is layer i's. turns, slots: as for
 * rotate_store. */
void layers(const struct block *blocks, const struct work *const *work, int64_t count, float eps, float *x,
            const float *turns, const int64_t *slots, const struct room *room, int64_t tokens, struct spent *spent) {
    const struct passed of = {blocks, work, count, eps, x, turns, slots, room, tokens, spent};
    together(pass, &of);
}
