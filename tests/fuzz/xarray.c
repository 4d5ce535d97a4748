/*
 * xarray.c - bytes -> operations on an index tree, against a sorted array
 *
 * The array has one element for each slot that is taken: index, entry and marks. Indices crowd around the edges of
 * nodes, of the tree and of 64 bits. After each step xa_check() is asked, the number of nodes is compared with what
 * the taken indices need, and a small tree is compared slot by slot (a large one every now and then).
 */
#include <errno.h>
#include <string.h>
#include "alloc.h"
#include "fuzz.h"
#include "rcu.h"
#include "xarray.h"

enum { SLOTS_MAX = 6000, STEPS = 1500, RANGE_MAX = 600, SMALL = 200 };

struct slot { uint64_t index; void *entry; uint8_t marks; };

static struct slot slots[SLOTS_MAX];
static unsigned nr_slots;

static struct t_alloc alloc;
static struct mem mem;
static struct xarray xa;
static struct xa_pool pool;
static char entries[64];                /* their addresses are entries, odd ones among them */

/* --- the array -------------------------------------------------------------------------------------------- */

/* The first element at or after @index, or nr_slots. */
static unsigned find(uint64_t index)
{
	unsigned lo = 0, hi = nr_slots;

	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;

		if (slots[mid].index < index)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* How many elements lie in [index, last]; they start at find(index). */
static unsigned taken(uint64_t index, uint64_t last)
{
	return last == UINT64_MAX ? nr_slots - find(index) : find(last + 1) - find(index);
}

static struct slot *slot_at(uint64_t index)
{
	unsigned i = find(index);

	return i < nr_slots && slots[i].index == index ? &slots[i] : NULL;
}

static bool any_marked(unsigned mark)
{
	for (unsigned i = 0; i < nr_slots; i++)
		if (slots[i].marks & 1U << mark)
			return true;
	return false;
}

/* One node for each group of indices that differ below it only, on every level that the largest index needs. */
static uint64_t nodes_needed(void)
{
	uint64_t nodes = 0;
	unsigned shift = XA_SHIFT;

	if (!nr_slots)
		return 0;
	for (; ; shift += XA_SHIFT) {
		bool all = shift >= 64;

		nodes++;
		for (unsigned i = 1; !all && i < nr_slots; i++)
			nodes += slots[i].index >> shift != slots[i - 1].index >> shift;
		if (all || slots[nr_slots - 1].index >> shift == 0)
			return nodes;
	}
}

/* --- comparing -------------------------------------------------------------------------------------------- */

static void compare_slots(void)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < nr_slots; i++, at++) {
		const struct slot *s = &slots[i];
		void *entry = xa_find(&xa, &at, UINT64_MAX);

		FUZZ_CHECK(entry && at == s->index, "slot %u is at %llx, not %llx", i, (unsigned long long)at,
			   (unsigned long long)s->index);
		FUZZ_CHECK(entry == s->entry && xa_load(&xa, at) == s->entry, "%llx is another",
			   (unsigned long long)at);
		for (unsigned mark = 0; mark < XA_MARKS; mark++)
			FUZZ_EQ(xa_get_mark(&xa, at, mark), s->marks >> mark & 1);
	}
	if (!nr_slots || slots[nr_slots - 1].index != UINT64_MAX)
		FUZZ_CHECK(!xa_find(&xa, &at, UINT64_MAX), "and one more at %llx", (unsigned long long)at);
}

static void compare(bool all)
{
	char why[200];

	FUZZ_CHECK(xa_check(&xa, why, sizeof(why)) == 0, "%s", why);
	FUZZ_EQ(xa_empty(&xa), nr_slots == 0);
	FUZZ_EQ(xa_nodes(&xa), nodes_needed());
	for (unsigned mark = 0; mark < XA_MARKS; mark++)
		FUZZ_EQ(xa_marked(&xa, mark), any_marked(mark));
	if (all || nr_slots <= SMALL)
		compare_slots();
}

/* --- operations ------------------------------------------------------------------------------------------- */

static uint64_t pick_index(struct fuzz_in *in)
{
	static const uint64_t bases[] = {
		0, 0, 0, 4000, (UINT64_C(1) << 18) - 300, (UINT64_C(1) << 24) - 300, (UINT64_C(1) << 52) - 300,
		(UINT64_C(1) << 60) - 300, (UINT64_C(1) << 63) - 300, UINT64_MAX - 999,
	};
	uint64_t base = bases[fuzz_below(in, ARRAY_SIZE(bases))];

	return base + fuzz_below(in, 1000);
}

static uint64_t pick_last(struct fuzz_in *in, uint64_t index)
{
	uint8_t how = fuzz_byte(in);
	uint64_t more = how < 128 ? how % 4U : how < 240 ? how % 64U : fuzz_below(in, RANGE_MAX);

	return index + more < index ? UINT64_MAX : index + more;
}

/* For questions: the end may also lie far off, or before the start. */
static uint64_t pick_far(struct fuzz_in *in, uint64_t index)
{
	switch (fuzz_byte(in) % 4) {
	case 0: return UINT64_MAX;
	case 1: return pick_index(in);
	default: return pick_last(in, index);
	}
}

static void store(uint64_t index, uint64_t last, void *entry, bool no_memory)
{
	uint64_t nr = last - index + 1;
	unsigned at = find(index);
	bool exists = taken(index, last);
	int ret;

	if (nr_slots + nr > SLOTS_MAX)
		return;
	ret = xa_store(&xa, index, nr, entry, &pool);
	if (ret == -EAGAIN) {
		FUZZ_CHECK(!exists, "nodes for what is there already");
		FUZZ_CHECK(pool.nr < pool.need, "%u nodes, %u needed", pool.nr, pool.need);
		t_alloc_fail(&alloc, no_memory);
		ret = xa_pool_fill(&xa, &pool);
		t_alloc_fail(&alloc, 0);
		FUZZ_EQ(ret, no_memory ? -ENOMEM : 0);
		if (no_memory)
			return;
		ret = xa_store(&xa, index, nr, entry, &pool);
		FUZZ_CHECK(ret == 0 && pool.nr == 0, "%d, with the nodes it asked for and %u left", ret, pool.nr);
	}
	FUZZ_EQ(ret, exists ? -EEXIST : 0);
	if (ret)
		return;
	memmove(&slots[at + nr], &slots[at], (nr_slots - at) * sizeof(*slots));
	for (uint64_t i = 0; i < nr; i++)
		slots[at + i] = (struct slot){ index + i, entry, 0 };
	nr_slots += (unsigned)nr;
}

static void erase(uint64_t index, uint64_t last)
{
	unsigned at = find(index), n = taken(index, last);

	xa_erase(&xa, index, last - index + 1);
	memmove(&slots[at], &slots[at + n], (nr_slots - at - n) * sizeof(*slots));
	nr_slots -= n;
}

/* From the first slot at or after @index on, as far as slots follow each other. */
static void replace(uint64_t index, uint64_t nr, void *entry)
{
	unsigned at = find(index), n = 0;

	if (at == nr_slots)
		return;
	for (; n < nr && at + n < nr_slots && slots[at + n].index == slots[at].index + n; n++)
		slots[at + n].entry = entry;
	xa_replace(&xa, slots[at].index, n, entry);
}

static void set_mark(uint64_t index, enum xa_mark mark)
{
	unsigned at = find(index);

	if (at == nr_slots)
		return;
	xa_set_mark(&xa, slots[at].index, mark);
	slots[at].marks |= (uint8_t)(1U << mark);
}

static void clear_mark(uint64_t index, enum xa_mark mark)
{
	struct slot *s = slot_at(index);

	xa_clear_mark(&xa, index, mark);
	if (s)
		s->marks &= (uint8_t)~(1U << mark);
}

/* *first is promised only as the place to go on from: nothing marked is between the last one taken and it. */
static void copy_mark(uint64_t first, uint64_t last, enum xa_mark from, enum xa_mark to, uint64_t max)
{
	uint64_t at = first, n = 0, got = xa_copy_mark(&xa, &at, last, from, to, max);
	unsigned i = find(first);

	for (; i < nr_slots && slots[i].index <= last && n < max; i++) {
		if (!(slots[i].marks & 1U << from))
			continue;
		slots[i].marks |= (uint8_t)(1U << to);
		n++;
	}
	FUZZ_EQ(got, n);
	if (first > last)
		return;
	while (i < nr_slots && slots[i].index <= last && !(slots[i].marks & 1U << from))
		i++;
	if (i < nr_slots && slots[i].index <= last)
		FUZZ_CHECK(at <= slots[i].index && (n == 0 || at > first), "goes on at %llx", (unsigned long long)at);
	else
		FUZZ_CHECK(at == last + 1 || n == max, "all is done, but goes on at %llx", (unsigned long long)at);
}

static void ask(uint64_t index, uint64_t last, unsigned kind)
{
	unsigned i = find(index);
	const struct slot *s = slot_at(index);
	uint64_t at = index;
	void *entry = kind < XA_MARKS ? xa_find_marked(&xa, &at, last, kind) : xa_find(&xa, &at, last);

	while (kind < XA_MARKS && i < nr_slots && !(slots[i].marks & 1U << kind))
		i++;
	if (i == nr_slots || slots[i].index > last)
		FUZZ_CHECK(!entry, "found %llx", (unsigned long long)at);
	else
		FUZZ_CHECK(entry == slots[i].entry && at == slots[i].index, "found %llx", (unsigned long long)at);
	FUZZ_CHECK(xa_load(&xa, index) == (s ? s->entry : NULL), "%llx is another", (unsigned long long)index);
	for (unsigned mark = 0; mark < XA_MARKS; mark++)
		FUZZ_EQ(xa_get_mark(&xa, index, mark), s ? s->marks >> mark & 1 : 0);
}

static void step(struct fuzz_in *in)
{
	uint8_t op = fuzz_byte(in);
	uint64_t index = pick_index(in), last;
	enum xa_mark mark = op / 16 % XA_MARKS;

	switch (op % 16) {
	case 0: case 1: case 2: case 3: case 4:
		last = pick_last(in, index);
		store(index, last, &entries[op / 4], op == 0xf4);
		break;
	case 5: case 6: case 7:
		erase(index, pick_last(in, index));
		break;
	case 8:
		replace(index, 1 + fuzz_byte(in) % 100, &entries[op / 4]);
		break;
	case 9: case 10:
		set_mark(index, mark);
		break;
	case 11:
		clear_mark(index, mark);
		break;
	case 12: case 13:
		last = pick_far(in, index);
		copy_mark(index, last, mark, (mark + 1 + op / 64 % 2) % XA_MARKS,
			  op % 2 ? UINT64_MAX : fuzz_byte(in) % 70);
		break;
	default:
		last = pick_far(in, index);
		ask(index, last, op / 16 % (XA_MARKS + 1));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = fuzz_begin(data, size);
	static unsigned inputs;

	if (!inputs) {
		t_alloc_init(&alloc);
		FUZZ_EQ(mem_init(&mem, &alloc.ops), 0);
	}
	xa_init(&xa, &mem);
	pool = (struct xa_pool){ 0 };
	nr_slots = 0;
	for (unsigned i = 0; i < STEPS && fuzz_more(&in); i++) {
		step(&in);
		compare(i % 16 == 15);
	}
	compare(true);
	xa_fini(&xa);
	FUZZ_EQ(xa_empty(&xa), true);
	xa_pool_fini(&xa, &pool);
	if (++inputs % FUZZ_DRAIN_EVERY == 0) {
		rcu_drain();
		FUZZ_EQ(mem_bytes(&mem), 0);
		FUZZ_EQ(alloc.bytes, 0);
	}
	return 0;
}
