/*
 * rangeset.h - a sorted set of byte ranges that never needs memory at the wrong moment
 *
 * Used for blocks known allocated, written but not flushed, lost by a failed flush. Thread-safe by its own leaf lock.
 * Memory comes from rangeset_reserve(), called where allocation is allowed; rangeset_add() itself allocates nothing. When the
 * array is full and may not grow, the policy decides which way the set may be wrong: RANGESET_SUPERSET joins
 * the two closest neighbours, RANGESET_SUBSET forgets the smallest range.
 */
#ifndef IOMAP_RANGESET_H
#define IOMAP_RANGESET_H

#include "mem.h"
#include "platform.h"

#define RANGESET_MAX 4096

struct range { uint64_t start, end; };          /* half-open */
enum rangeset_policy { RANGESET_SUPERSET, RANGESET_SUBSET };

struct rangeset {
	struct mem *mem;
	struct mutex lock;                      /* LOCK_LEAF */
	enum rangeset_policy policy;
	struct range *ranges;                   /* sorted, disjoint, not touching; starts as the inline few */
	unsigned nr, cap, max;
	struct range few[4];
};

void rangeset_init(struct rangeset *rs, struct mem *mem, enum rangeset_policy policy, unsigned max);
void rangeset_fini(struct rangeset *rs);
/*
 * Room for @extra more ranges, as far as @max and memory allow (no error: the policy covers the rest). No short
 * lock held.
 */
void rangeset_reserve(struct rangeset *rs, unsigned extra);
void rangeset_add(struct rangeset *rs, uint64_t start, uint64_t end);
void rangeset_remove(struct rangeset *rs, uint64_t start, uint64_t end);
bool rangeset_contains(struct rangeset *rs, uint64_t start, uint64_t end);      /* all of it */
bool rangeset_next(struct rangeset *rs, uint64_t pos, struct range *out);       /* first range that ends after @pos */
/* First part of [start, end) that is not in the set; false: all of it is. */
bool rangeset_next_gap(struct rangeset *rs, uint64_t start, uint64_t end, struct range *out);
void rangeset_move(struct rangeset *to, struct rangeset *from);                 /* adds all of @from to @to, empties @from; locks one after the other */
bool rangeset_empty(struct rangeset *rs);
uint64_t rangeset_bytes(struct rangeset *rs);
unsigned rangeset_count(struct rangeset *rs);
int  rangeset_check(struct rangeset *rs, char *why, size_t why_len);

#endif
