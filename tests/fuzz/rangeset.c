/*
 * rangeset.c - bytes -> operations on two range sets, against bitmaps
 *
 * A cell of the bitmap stands for a piece of the address space, at its start, at its end, or somewhere. What a set
 * holds is read back after each step. Where it had room for every range it must hold exactly what it was told to;
 * where it had none it may be wrong by one gap that is filled (superset) or one range that is left out (subset), the
 * smallest there was, and over all steps only to its own side.
 */
#include <string.h>
#include "alloc.h"
#include "fuzz.h"
#include "rangeset.h"
#include "util.h"

enum { CELLS = 300, STEPS = 4000 };

struct set {
	struct rangeset rs;
	bool told[CELLS];       /* what was added and not removed */
	bool has[CELLS];        /* what the set holds */
};

static struct t_alloc alloc;
static struct mem mem;
static uint64_t base, scale;            /* cell i is [base + i * scale, base + (i + 1) * scale) */

static uint64_t at(unsigned cell) { return base + cell * scale; }

static unsigned cell_of(uint64_t pos)
{
	FUZZ_CHECK(pos >= base && (pos - base) % scale == 0 && (pos - base) / scale <= CELLS, "%llu is no edge",
		   (unsigned long long)pos);
	return (unsigned)((pos - base) / scale);
}

/* The run of cells that are @value and start at or after @from: false if there is none. */
static bool next_run(const bool *map, bool value, unsigned from, unsigned *first, unsigned *end)
{
	while (from < CELLS && map[from] != value)
		from++;
	*first = from;
	while (from < CELLS && map[from] == value)
		from++;
	*end = from;
	return *first < CELLS;
}

static unsigned runs(const bool *map)
{
	unsigned n = 0, first, end = 0;

	while (next_run(map, true, end, &first, &end))
		n++;
	return n;
}

/* The shortest range, or gap between two ranges. */
static unsigned shortest(const bool *map, bool value)
{
	unsigned best = CELLS, first, end = 0;

	while (next_run(map, value, end, &first, &end))
		if (end - first < best && (value || (first > 0 && end < CELLS)))
			best = end - first;
	return best;
}

static void read_back(struct set *s)
{
	uint64_t pos = 0, bytes = 0;
	unsigned n = 0;
	struct range r;
	char why[200];

	FUZZ_CHECK(rangeset_check(&s->rs, why, sizeof(why)) == 0, "%s", why);
	memset(s->has, 0, sizeof(s->has));
	for (; rangeset_next(&s->rs, pos, &r); n++) {
		FUZZ_CHECK(r.start < r.end && r.end > pos && (n == 0 || r.start > pos), "range %u is in disorder", n);
		for (unsigned c = cell_of(r.start); c < cell_of(r.end); c++)
			s->has[c] = true;
		bytes += r.end - r.start;
		pos = r.end;
	}
	FUZZ_EQ(rangeset_count(&s->rs), n);
	FUZZ_EQ(rangeset_count(&s->rs), runs(s->has));
	FUZZ_EQ(rangeset_bytes(&s->rs), bytes);
	FUZZ_EQ(rangeset_empty(&s->rs), n == 0);
}

/* The set was to hold @want. @exact: but for one range too many, it had room for it. */
static void compare(struct set *s, const bool *want, bool exact)
{
	bool superset = s->rs.policy == RANGESET_SUPERSET;
	unsigned differ = 0;

	read_back(s);
	for (unsigned c = 0; c < CELLS; c++) {
		FUZZ_CHECK(superset || s->told[c] || !s->has[c], "cell %u was never added", c);
		FUZZ_CHECK(!superset || !s->told[c] || s->has[c], "cell %u was lost", c);
		differ += s->has[c] != want[c];
	}
	if (!exact)
		return;
	if (runs(want) <= s->rs.cap) {
		FUZZ_CHECK(!differ, "%u cells are wrong, with room for all", differ);
		return;
	}
	FUZZ_EQ(runs(want), s->rs.cap + 1);
	FUZZ_EQ(rangeset_count(&s->rs), s->rs.cap);
	FUZZ_EQ(differ, shortest(want, !superset));
}

static void change(struct set *s, bool add, unsigned first, unsigned end)
{
	bool want[CELLS];

	memcpy(want, s->has, sizeof(want));
	for (unsigned c = first; c < end; c++)
		want[c] = s->told[c] = add;
	(add ? rangeset_add : rangeset_remove)(&s->rs, at(first), at(end));
	compare(s, want, true);
}

static void move(struct set *to, struct set *from)
{
	bool want[CELLS], nothing[CELLS] = { false };
	bool room = to->rs.nr + from->rs.nr <= to->rs.cap;
	bool same_side = to->rs.policy == from->rs.policy;

	for (unsigned c = 0; c < CELLS; c++) {
		want[c] = to->has[c] || from->has[c];
		/* a set of the other kind has its own idea of what it was told */
		to->told[c] |= same_side ? from->told[c] : from->has[c];
	}
	memset(from->told, 0, sizeof(from->told));
	rangeset_move(&to->rs, &from->rs);
	compare(to, want, room);
	compare(from, nothing, true);
}

static void reserve(struct set *s, unsigned extra, bool no_memory)
{
	unsigned cap = s->rs.cap;
	uint64_t want = min_u64(s->rs.max, (uint64_t)s->rs.nr + extra);
	bool before[CELLS];

	memcpy(before, s->has, sizeof(before));
	t_alloc_fail(&alloc, no_memory);
	rangeset_reserve(&s->rs, extra);
	if (!no_memory)
		FUZZ_CHECK(s->rs.cap >= want, "%u places, %llu were reserved", s->rs.cap, (unsigned long long)want);
	FUZZ_CHECK(s->rs.cap >= cap && s->rs.cap <= s->rs.max, "%u places, %u before", s->rs.cap, cap);
	t_alloc_fail(&alloc, 0);
	compare(s, before, true);
}

static void ask(struct set *s, unsigned first, unsigned end)
{
	unsigned run, run_end, limit;
	struct range r;

	if (first < end) {
		bool all = !next_run(s->has, false, first, &run, &run_end) || run >= end;

		FUZZ_EQ(rangeset_contains(&s->rs, at(first), at(end)), all);
		FUZZ_EQ(rangeset_next_gap(&s->rs, at(first), at(end), &r), !all);
		limit = run_end < end ? run_end : end;
		FUZZ_CHECK(all || (r.start == at(run) && r.end == at(limit)), "the gap at %u is another", run);
	} else {
		FUZZ_EQ(rangeset_contains(&s->rs, at(first), at(end)), true);
		FUZZ_EQ(rangeset_next_gap(&s->rs, at(first), at(end), &r), false);
	}
	next_run(s->has, true, first, &run, &run_end);
	FUZZ_EQ(rangeset_next(&s->rs, at(first), &r), run < CELLS);
	FUZZ_CHECK(run == CELLS || r.end == at(run_end), "the range after %u ends elsewhere", first);
}

static void init(struct set *s, struct fuzz_in *in)
{
	uint8_t how = fuzz_byte(in);

	memset(s, 0, sizeof(*s));
	rangeset_init(&s->rs, &mem, how & 1 ? RANGESET_SUBSET : RANGESET_SUPERSET,
		      how & 2 ? RANGESET_MAX : 1 + how / 4U);
	read_back(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint64_t scales[] = { 1, 512, 4096, UINT64_MAX / CELLS };
	struct fuzz_in in = fuzz_begin(data, size);
	uint8_t where = fuzz_byte(&in);
	static struct set sets[2];

	t_alloc_init(&alloc);
	FUZZ_EQ(mem_init(&mem, &alloc.ops), 0);
	scale = scales[where % 4];
	base = where & 4 ? UINT64_MAX - CELLS * scale : where & 8 ? (UINT64_MAX - CELLS * scale) / 2 : 0;
	init(&sets[0], &in);
	init(&sets[1], &in);
	for (unsigned step = 0; step < STEPS && fuzz_more(&in); step++) {
		uint8_t op = fuzz_byte(&in);
		struct set *s = &sets[op & 1];
		unsigned first = (unsigned)fuzz_below(&in, CELLS), len = fuzz_byte(&in), end = first + len;

		if (op & 2)                     /* long ones are for the others */
			end = first + len % 8;
		if (end > CELLS)
			end = CELLS;
		switch (op / 4 % 8) {
		case 0: case 1: case 2: change(s, true, first, end); break;
		case 3: case 4: change(s, false, first, end); break;
		case 5: ask(s, first, end); break;
		case 6: reserve(s, len, op & 32); break;
		default:
			if (op & 32)
				move(s, s == sets ? &sets[1] : &sets[0]);
			else
				change(s, op & 64, end, first);         /* an empty range */
		}
	}
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned c = 0; c < CELLS; c += 7)
			ask(&sets[i], c, c + 7 < CELLS ? c + 7 : CELLS);
		rangeset_fini(&sets[i].rs);
	}
	FUZZ_EQ(mem_bytes(&mem), 0);
	FUZZ_EQ(alloc.bytes, 0);
	mem_fini(&mem);
	return 0;
}
