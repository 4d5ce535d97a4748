/*
 * ghost.c - fingerprints of evicted folios
 *
 * (file, index) is hashed to 64 bits: the upper half picks a set, the lower half is the fingerprint. A set is one cache
 * line of fingerprints, newest first, zeros (nothing) last; a new one pushes the oldest out. So a set needs no clock, and a
 * lookup touches one line. Which fingerprints are remembered together depends on the hash, so the table forgets a little
 * before it is full; that is as good as a slightly smaller table.
 *
 * Invariants: no fingerprint stands in a set twice.
 * Locking:    ghost->lock for all of the table.
 * Kernel:     mm/workingset.c. Differs: a table of its own instead of shadow entries in the tree, and one bit of answer.
 */
#include "ghost.h"

#include <errno.h>
#include <string.h>
#include "util.h"

#define WAYS            16U             /* 64 bytes: a cache line */
#define SET_BYTES       (WAYS * sizeof(uint32_t))

/* Every bit of the result depends on every bit of both; odd multipliers lose nothing. */
static uint64_t hash(uint64_t file, uint64_t index)
{
	uint64_t h = file * UINT64_C(0xd6e8feb86659fd93) + index;

	for (int i = 0; i < 3; i++) {
		h ^= h >> 32;
		h *= UINT64_C(0x9e3779b97f4a7c15);
	}
	return h ^ h >> 32;
}

static uint32_t *set_of(const struct ghost *g, uint64_t h)
{
	return g->slots + ((h >> 32) * g->nr_sets >> 32) * WAYS;
}

static uint32_t fingerprint(uint64_t h)
{
	return (uint32_t)h ? (uint32_t)h : 1;
}

/* Where @print stands in @set, else WAYS. */
static unsigned find(const uint32_t *set, uint32_t print)
{
	unsigned i = 0;

	while (i < WAYS && set[i] != print)
		i++;
	return i;
}

int ghost_init(struct ghost *g, struct mem *mem, uint64_t entries)
{
	uint64_t nr_sets = div_round_up(entries, WAYS);

	if (nr_sets > UINT32_MAX)
		return -ENOMEM;
	g->mem = mem;
	g->nr_sets = (uint32_t)nr_sets;
	g->slots = NULL;
	if (nr_sets) {
		g->slots = mem_alloc_aligned(mem, nr_sets * SET_BYTES, SET_BYTES);
		if (!g->slots)
			return -ENOMEM;
	}
	mutex_init(&g->lock, LOCK_LEAF);
	return 0;
}

void ghost_fini(struct ghost *g)
{
	mutex_fini(&g->lock);
	mem_free(g->mem, g->slots, g->nr_sets * SET_BYTES);
	g->slots = NULL;
}

void ghost_insert(struct ghost *g, uint64_t file, uint64_t index)
{
	uint64_t h = hash(file, index);
	uint32_t print = fingerprint(h);

	if (!g->nr_sets)
		return;
	uint32_t *set = set_of(g, h);

	mutex_lock(&g->lock);
	/* It moves to the front from where it was, or over the oldest. */
	unsigned at = find(set, print);
	memmove(set + 1, set, (at < WAYS ? at : WAYS - 1) * sizeof(*set));
	set[0] = print;
	mutex_unlock(&g->lock);
}

bool ghost_take(struct ghost *g, uint64_t file, uint64_t index)
{
	uint64_t h = hash(file, index);

	if (!g->nr_sets)
		return false;
	uint32_t *set = set_of(g, h);

	mutex_lock(&g->lock);
	unsigned at = find(set, fingerprint(h));
	bool found = at < WAYS;
	if (found) {
		memmove(set + at, set + at + 1, (WAYS - 1 - at) * sizeof(*set));
		set[WAYS - 1] = 0;
	}
	mutex_unlock(&g->lock);
	return found;
}
