/*
 * space.c - which blocks are in use, how many pointers lead to each, how many are promised
 *
 * A block is in use from cow_space_take() on. Nothing points to it then; if nothing ever will (its object is cut off), it is given
 * back. Else the node that leads to it counts as a pointer once it is written, and the block is free again with the last one.
 */
#include <errno.h>
#include <stdlib.h>
#include "internal.h"

int cow_space_init(struct space *s, uint64_t blocks)
{
	*s = (struct space) { .blocks = blocks, .nr_free = blocks, .cursor = COW_ROOTS };
	s->used = calloc((blocks + 63) / 64, sizeof(*s->used));
	s->refs = calloc(blocks, sizeof(*s->refs));
	if (!s->used || !s->refs) {
		cow_space_fini(s);
		return -ENOMEM;
	}
	for (uint64_t blk = 0; blk < COW_ROOTS; blk++)
		cow_space_ref(s, blk);
	return 0;
}

void cow_space_fini(struct space *s)
{
	free(s->used);
	free(s->refs);
	s->used = NULL;
	s->refs = NULL;
}

bool cow_space_reserve(struct space *s, uint64_t n, uint64_t slack)
{
	if (s->nr_free < s->reserved + n + slack)
		return false;
	s->reserved += n;
	return true;
}

void cow_space_unreserve(struct space *s, uint64_t n)
{
	s->reserved -= n;
}

static bool in_use(const struct space *s, uint64_t blk)
{
	return s->used[blk / 64] >> (blk % 64) & 1;
}

static void set_used(struct space *s, uint64_t blk)
{
	s->used[blk / 64] |= 1ULL << (blk % 64);
	s->nr_free--;
}

/* First free block at or after @from, or s->blocks. */
static uint64_t next_free(const struct space *s, uint64_t from)
{
	while (from < s->blocks) {
		uint64_t clear = ~s->used[from / 64] >> (from % 64);

		if (clear) {
			from += (unsigned)__builtin_ctzll(clear);
			return from < s->blocks ? from : s->blocks;
		}
		from = (from / 64 + 1) * 64;
	}
	return s->blocks;
}

uint64_t cow_space_take(struct space *s, uint64_t want, uint64_t *got)
{
	uint64_t blk = next_free(s, s->cursor), n = 0;

	*got = 0;
	if (blk == s->blocks)
		blk = next_free(s, 0);
	if (blk == s->blocks || !want)
		return 0;
	while (n < want && blk + n < s->blocks && !in_use(s, blk + n))
		set_used(s, blk + n++);
	s->cursor = blk + n;
	*got = n;
	return blk;
}

void cow_space_give(struct space *s, uint64_t blk)
{
	s->used[blk / 64] &= ~(1ULL << (blk % 64));
	s->nr_free++;
}

uint32_t cow_space_ref(struct space *s, uint64_t blk)
{
	if (!in_use(s, blk))
		set_used(s, blk);
	return s->refs[blk]++;
}

uint32_t cow_space_unref(struct space *s, uint64_t blk)
{
	uint32_t left = --s->refs[blk];

	if (!left)
		cow_space_give(s, blk);
	return left;
}
