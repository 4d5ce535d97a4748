/*
 * reclaim.c - which folio goes: more than fits is read right, what is used again stays, dirty data is never dropped
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "call.h"
#include "file.h"
#include "flusher.h"
#include "reclaim.h"
#include "rig.h"
#include "test.h"

Suite *suite_reclaim(void);

#define MEMORY (2 * MIB)

static struct t_rig rig;
static unsigned char buf[MIB], in[MIB];

/* A stored file of @size bytes that tell their position, in a cache of MEMORY. */
static void up(uint64_t size, unsigned readahead)
{
	t_rig_init(&rig);
	rig.params.memory_bytes = MEMORY;
	rig.params.max_folio_bytes = 65536;
	rig.params.dirty_bytes = 64 * MIB;              /* the throttle has no say here */
	rig.params.dirty_background_bytes = 60 * MIB;
	rig.params.readahead_bytes = readahead;
	rig.device_params.volatile_cache = false;
	rig.device_params.capacity = 32 * MIB;
	rig.device_params.size = size;
	t_rig_up(&rig);
	for (uint64_t pos = 0; pos < size; pos += sizeof(buf)) {
		t_fill(buf, pos, sizeof(buf), 1);
		t_hold_poke(rig.hold, buf, min_u64(sizeof(buf), size - pos), pos);
	}
}

static void check(void)
{
	char why[300] = "";

	if (reclaim_check(rig.cache, why, sizeof(why)))
		ck_abort_msg("%s", why);
	t_rig_check(&rig);
	ck_assert_uint_le(t_rig_stat(&rig).cached_bytes, MEMORY);
	/* The background may evict between the two looks. */
	ck_assert(T_WAIT(reclaim_queued_bytes(rig.cache) == t_rig_stat(&rig).cached_bytes, 5000));
}

static void read_at(uint64_t pos, size_t len, uint64_t seed)
{
	ck_assert_int_eq(iomap_pread(rig.file, in, len, (off_t)pos), (ssize_t)len);
	ck_assert(t_check_fill(in, pos, len, seed));
}

static void read_all(uint64_t from, uint64_t to, size_t step)
{
	for (uint64_t pos = from; pos < to; pos += step)
		read_at(pos, (size_t)min_u64(step, to - pos), 1);
}

static uint64_t device_reads(void)
{
	return t_rig_io(&rig).read_bytes;
}

START_TEST(file_larger_than_the_cache_is_read_right)
{
	static const size_t steps[] = { 4096, 65536, 1000, MIB };
	uint64_t chance = 3;

	up(8 * MIB + 777, 0);
	for (unsigned i = 0; i < ARRAY_SIZE(steps); i++) {
		read_all(0, 8 * MIB + 777, steps[i]);
		check();
	}
	for (unsigned i = 0; i < 2000; i++) {
		uint64_t pos = t_random_below(&chance, 8 * MIB);

		read_at(pos, 1 + t_random_below(&chance, min_u64(20000, 8 * MIB + 777 - pos)), 1);
	}
	check();
	ck_assert_uint_ge(t_rig_stat(&rig).evicted_bytes, 4 * (8 * MIB - MEMORY));
	t_rig_down(&rig);
}
END_TEST

static ssize_t dontcache_write(uint64_t pos, size_t len)
{
	struct iovec iov = { buf, len };

	t_fill(buf, pos, len, 2);
	return iomap_pwritev2(rig.file, &iov, 1, (off_t)pos, IOMAP_RWF_DONTCACHE);
}

static struct iomap_folio *locked(uint64_t pos)
{
	struct iomap_folio *f = mapping_get_locked(&rig.file->inode->mapping, pos >> PAGE_SHIFT);

	ck_assert_ptr_nonnull(f);
	return f;
}

static void unlock_put(struct iomap_folio *f)
{
	folio_unlock(&rig.cache->zone, f);
	folio_put(&rig.cache->zone, f);
}

/* B22: it was clean when it was seen, somebody had it, and when it is let go it is dirty again. */
START_TEST(a_folio_dirtied_before_it_is_dropped_stays_and_is_written)
{
	struct mapping *m;
	struct iomap_folio *f;

	up(MIB, 0);
	rig.file->inode->cache->dontcache = IOMAP_DONTCACHE_RATELIMIT;
	m = &rig.file->inode->mapping;
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	ck_assert_int_eq(dontcache_write(0, 4096), 4096);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	f = locked(0);                                  /* before the completion can drop it */
	t_hold_release(rig.hold);
	ck_assert(T_WAIT(!folio_is_writeback(f), 5000));
	ck_assert(folio_is_droppable(f));
	reclaim_drop_behind(m, f);                      /* tried in vain, as by a reader, and queued */
	for (unsigned i = 0; i < 10; i++)
		t_run_nap();
	ck_assert_ptr_eq(folio_mapping(f), m);
	ck_assert(folio_flags(f) & FOLIO_BEHIND);
	check();
	mapping_set_dirty(m, f, 0, 1);                  /* what a DONTCACHE write does */
	flusher_mark_dirty(rig.file->inode);
	cache_count_orphan(rig.cache, TASK_DIRTIED_BYTES, 4096);
	folio_unlock(&rig.cache->zone, f);
	reclaim_drop_behind(m, f);
	folio_put(&rig.cache->zone, f);
	for (unsigned i = 0; i < 100; i++)
		t_run_nap();
	f = locked(0);
	ck_assert(folio_is_dirty(f) && !(folio_flags(f) & FOLIO_BEHIND));
	unlock_put(f);
	check();
	ck_assert_int_eq(iomap_fsync(rig.file), 0);     /* clean now, and still one to be dropped */
	ck_assert(T_WAIT(t_rig_stat(&rig).cached_bytes == 0, 5000));
	check();
	t_rig_down(&rig);
}
END_TEST

/* Whoever has a folio when it should go, keeps it from going, and no longer than that. */
START_TEST(a_busy_folio_is_dropped_as_soon_as_it_is_let_go)
{
	struct iomap_folio *f;

	up(MIB, 0);
	for (unsigned by_reference = 0; by_reference < 2; by_reference++) {
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		ck_assert_int_eq(dontcache_write(0, 65536), 65536);
		ck_assert(t_hold_wait_parked(rig.hold, 1));
		f = locked(0);
		if (by_reference)
			folio_unlock(&rig.cache->zone, f);
		t_hold_release(rig.hold);
		ck_assert(T_WAIT(!folio_is_writeback(f), 5000));
		for (unsigned i = 0; i < 100; i++)
			t_run_nap();
		ck_assert_ptr_nonnull(folio_mapping(f));
		if (by_reference)
			folio_put(&rig.cache->zone, f);
		else
			unlock_put(f);
		ck_assert(T_WAIT(t_rig_stat(&rig).cached_bytes == 0, 5000));
		check();
	}
	t_rig_down(&rig);
}
END_TEST

static bool folio_at_is(uint64_t pos, uint32_t flag)
{
	struct iomap_folio *f = locked(pos);
	bool is = folio_flags(f) & flag;

	unlock_put(f);
	return is;
}

/* Of folios made by DONTCACHE writes those go that nobody else has looked up for writing; of others none. */
START_TEST(only_what_dontcache_made_and_nobody_else_wrote_is_dropped)
{
	up(MIB, IOMAP_READAHEAD_OFF);
	rig.file->inode->cache->dontcache = IOMAP_DONTCACHE_RATELIMIT;
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	ck_assert_int_eq(dontcache_write(0, 4096), 4096);       /* in flight: the others are left dirty */
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	read_at(65536, 4096, 1);
	ck_assert_int_eq(dontcache_write(65536, 4096), 4096);   /* was cached */
	ck_assert_int_eq(dontcache_write(131072, 4096), 4096);
	ck_assert_int_eq(dontcache_write(131072, 4096), 4096);  /* twice: B23 */
	ck_assert_int_eq(dontcache_write(196608, 4096), 4096);
	t_fill(buf, 196608, 10, 2);
	ck_assert_int_eq(iomap_pwrite(rig.file, buf, 10, 196608), 10);  /* wanted by somebody else */
	ck_assert(!folio_at_is(65536, FOLIO_DROPBEHIND));
	ck_assert(folio_at_is(131072, FOLIO_DROPBEHIND));
	ck_assert(!folio_at_is(196608, FOLIO_DROPBEHIND));
	ck_assert_uint_eq(t_rig_stat(&rig).dontcache_dirty_bytes, 4096);
	check();
	t_hold_release(rig.hold);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert(T_WAIT(t_rig_stat(&rig).cached_bytes == 8192, 5000));
	for (unsigned i = 0; i < 50; i++)
		t_run_nap();
	ck_assert_uint_eq(t_rig_stat(&rig).cached_bytes, 8192);
	t_rig_reset(&rig);
	read_at(65536, 4096, 2);
	read_at(196608, 4096, 2);
	ck_assert_uint_eq(device_reads(), 0);
	read_at(131072, 4096, 2);
	ck_assert_uint_eq(device_reads(), 4096);
	t_rig_down(&rig);
}
END_TEST

START_TEST(what_fits_stays)
{
	up(MIB, 0);
	read_all(0, MIB, 65536);
	t_rig_reset(&rig);
	for (unsigned i = 0; i < 5; i++)
		read_all(0, MIB, 4096);
	ck_assert_uint_eq(device_reads(), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).evicted_bytes, 0);
	check();
	t_rig_down(&rig);
}
END_TEST

/*
 * Scans do not wash out the hot set: an eighth of the cache is read again and again, then much more than fits is read
 * once through. _i: pages one by one, or by readahead.
 */
START_TEST(folios_used_again_survive_a_scan)
{
	const uint64_t hot = MEMORY / 8;

	up(16 * MIB, _i ? 0 : IOMAP_READAHEAD_OFF);
	for (unsigned i = 0; i < 4; i++)
		read_all(0, hot, 4096);
	read_all(4 * MIB, 4 * MIB + MEMORY * 3 / 2, 4096);      /* fills the cache: the hot set reaches main */
	for (unsigned i = 0; i < 4; i++)
		read_all(0, hot, 4096);
	read_all(8 * MIB, 16 * MIB, 4096);
	check();
	t_rig_reset(&rig);
	read_all(0, hot, 4096);
	ck_assert_msg(device_reads() < hot / 4, "%llu of %llu bytes of the hot set were evicted by one scan",
		      (unsigned long long)device_reads(), (unsigned long long)hot);
	t_rig_down(&rig);
}
END_TEST

/* Seen again a short while after it was evicted: it is remembered, and goes to main at once. */
START_TEST(refault_is_counted_and_promoted)
{
	struct mapping *m;
	struct iomap_folio *f;
	uint64_t refaults;
	uint64_t pos = 4 * MIB;

	up(16 * MIB, IOMAP_READAHEAD_OFF);
	m = &rig.file->inode->mapping;
	read_at(0, 4096, 1);
	f = mapping_get(m, 0);
	ck_assert(folio_flags(f) & FOLIO_SMALL);
	and_relaxed(&f->flags, ~(uint32_t)FOLIO_REFERENCED);    /* not used since: first to go */
	folio_put(m->zone, f);
	ck_assert_uint_eq(t_rig_stat(&rig).refaults, 0);
	while (mapping_has(m, 0)) {
		ck_assert_uint_lt(pos, 16 * MIB);
		read_at(pos, 4096, 1);
		pos += 4096;
	}
	refaults = t_rig_stat(&rig).refaults;
	read_at(0, 4096, 1);
	ck_assert_uint_eq(t_rig_stat(&rig).refaults, refaults + 1);
	f = mapping_get(m, 0);
	ck_assert(folio_flags(f) & FOLIO_MAIN);
	folio_put(m->zone, f);
	check();
	t_rig_down(&rig);
}
END_TEST

/* stat.h: "misses on what was evicted a short while ago". A write that makes a folio misses nothing. */
START_TEST(write_is_no_refault)
{
	struct mapping *m;
	struct iomap_folio *f;
	uint64_t refaults, pos = 4 * MIB;

	up(16 * MIB, IOMAP_READAHEAD_OFF);
	m = &rig.file->inode->mapping;
	read_at(0, 4096, 1);
	f = mapping_get(m, 0);
	and_relaxed(&f->flags, ~(uint32_t)FOLIO_REFERENCED);
	folio_put(m->zone, f);
	for (; mapping_has(m, 0); pos += 4096)
		read_at(pos, 4096, 1);
	refaults = t_rig_stat(&rig).refaults;
	t_rig_write(&rig, 0, 4096, 'w');
	ck_assert_uint_eq(t_rig_stat(&rig).refaults, refaults);
	t_rig_down(&rig);
}
END_TEST

/* Nothing is clean, nothing is near a limit: what is written goes out, and all of it is right. */
START_TEST(cache_full_of_dirty_data_is_written_and_goes_on)
{
	up(0, 0);
	for (uint64_t pos = 0; pos < 8 * MIB; pos += 65536) {
		t_fill(buf, pos, 65536, 2);
		ck_assert_int_eq(iomap_pwrite(rig.file, buf, 65536, (off_t)pos), 65536);
	}
	check();
	for (uint64_t pos = 0; pos < 8 * MIB; pos += 65536)
		read_at(pos, 65536, 2);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	for (uint64_t pos = 0; pos < 8 * MIB; pos += MIB) {
		t_hold_peek(rig.hold, in, MIB, pos);
		ck_assert(t_check_fill(in, pos, MIB, 2));
	}
	check();
	t_rig_down(&rig);
}
END_TEST

/* I33, I35: dirty, in flight, locked, in use: none of them goes. */
START_TEST(only_what_is_idle_and_clean_goes)
{
	struct mapping *m;
	struct iomap_folio *used;
	struct t_call call;

	up(8 * MIB, 0);
	m = &rig.file->inode->mapping;
	t_rig_write(&rig, 0, 65536, 'd');               /* will be in flight */
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_call_fsync(&call, rig.file);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	t_rig_write(&rig, 65536, 65536, 'e');           /* dirty */
	read_at(MIB, 4096, 1);
	used = mapping_get(m, MIB / PAGE_BYTES);
	ck_assert_ptr_nonnull(used);
	read_all(2 * MIB, 8 * MIB, 65536);
	for (pgoff_t i = 0; i < 32; i++)
		ck_assert(mapping_has(m, i));
	ck_assert(mapping_has(m, MIB / PAGE_BYTES));
	folio_put(m->zone, used);
	ck_assert_uint_gt(t_rig_stat(&rig).evicted_bytes, 3 * MIB);
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&call), 0);
	t_call_free(&call);
	t_rig_expect(&rig, 0, 65536, 'd');
	t_rig_expect(&rig, 65536, 65536, 'e');
	check();
	t_rig_down(&rig);
}
END_TEST

/* All is dirty and nothing can be written: an error, in bounded time, and no byte of what was accepted is lost. */
START_TEST(no_memory_is_said_when_nothing_can_be_cleaned)
{
	uint64_t done = 0;
	ssize_t n;

	up(8 * MIB, IOMAP_READAHEAD_OFF);
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	memset(buf, 'k', 65536);
	while ((n = iomap_pwrite(rig.file, buf, 65536, (off_t)done)) > 0 && done < 2 * MEMORY)
		done += (uint64_t)n;
	ck_assert(n == -ENOMEM || n == -EIO);
	ck_assert_uint_gt(done, MEMORY / 2);
	ck_assert_uint_le(done, MEMORY);
	check();
	t_hold_heal(rig.hold);
	ck_assert_int_eq(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
	for (uint64_t pos = 0; pos < done; pos += 4096)
		t_rig_expect_stored(&rig, pos, min_u64(4096, done - pos), 'k');
	read_all(4 * MIB, 8 * MIB, 65536);
	check();
	t_rig_down(&rig);
}
END_TEST

/* A split folio is two folios on the queues; nothing was evicted by it, so nothing was wasted. */
START_TEST(split_of_a_folio_not_read_yet_wastes_nothing)
{
	struct iomap_folio *f, *right;
	struct mapping *m;
	pgoff_t at = 0;

	up(MIB, 0);
	m = &rig.file->inode->mapping;
	for (uint64_t pos = 0; pos < MIB / 2; pos += 4096)
		read_at(pos, 4096, 1);
	while ((f = mapping_next(m, &at, UINT64_MAX >> PAGE_SHIFT))) {
		if ((folio_flags(f) & FOLIO_UNUSED) && folio_order(f))
			break;
		at += folio_pages(f);
		folio_put(m->zone, f);
	}
	ck_assert_ptr_nonnull(f);               /* the window ahead of the last read */
	folio_lock(m->zone, f);
	ck_assert_int_eq(mapping_halve(m, f, &right), 0);
	folio_unlock(m->zone, right);
	folio_put(m->zone, right);
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
	ck_assert_uint_eq(t_rig_stat(&rig).splits, 1);
	ck_assert_uint_eq(t_rig_stat(&rig).readahead_wasted_bytes, 0);
	check();
	t_rig_down(&rig);
}
END_TEST

START_TEST(wasted_readahead_is_counted)
{
	uint64_t ahead;

	up(8 * MIB, 0);
	read_at(0, 4096, 1);                            /* a window: all but one page of it is never read */
	ahead = t_rig_stat(&rig).cached_bytes;
	ck_assert_uint_gt(ahead, 4096);
	ck_assert_uint_eq(t_rig_stat(&rig).readahead_wasted_bytes, 0);
	ck_assert_int_eq(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_RANDOM), 0);
	for (uint64_t pos = 4 * MIB; pos < 8 * MIB; pos += 4096)
		read_at(pos, 4096, 1);
	ck_assert_uint_gt(t_rig_stat(&rig).readahead_wasted_bytes, 0);
	ck_assert_uint_lt(t_rig_stat(&rig).readahead_wasted_bytes, ahead);
	t_rig_down(&rig);
}
END_TEST

/* --- several at once ------------------------------------------------------------------------------------ */

struct reader { uint64_t seed; unsigned wrong; };

static void *read_randomly(void *arg)
{
	struct reader *r = arg;
	uint64_t chance = r->seed;
	unsigned char mine[8192];

	for (unsigned i = 0; i < 1500; i++) {
		uint64_t pos = t_random_below(&chance, 6 * MIB / 512) * 512;
		ssize_t n = iomap_pread(rig.file, mine, sizeof(mine), (off_t)pos);

		if (n != (ssize_t)sizeof(mine) || !t_check_fill(mine, pos, sizeof(mine), 1))
			r->wrong++;
	}
	return NULL;
}

START_TEST(several_readers_share_a_cache_that_is_too_small)
{
	struct reader r[4] = { { 1, 0 }, { 2, 0 }, { 3, 0 }, { 4, 0 } };

	up(8 * MIB, 0);
	t_call_all(read_randomly, r, sizeof(r[0]), 4);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(r[i].wrong, 0);
	check();
	t_rig_down(&rig);
}
END_TEST

Suite *suite_reclaim(void)
{
	Suite *s = suite_create("reclaim");
	TCase *tc = tcase_create("reclaim");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, file_larger_than_the_cache_is_read_right);
	tcase_add_test(tc, a_folio_dirtied_before_it_is_dropped_stays_and_is_written);
	tcase_add_test(tc, a_busy_folio_is_dropped_as_soon_as_it_is_let_go);
	tcase_add_test(tc, only_what_dontcache_made_and_nobody_else_wrote_is_dropped);
	tcase_add_test(tc, what_fits_stays);
	tcase_add_loop_test(tc, folios_used_again_survive_a_scan, 0, 2);
	tcase_add_test(tc, refault_is_counted_and_promoted);
	tcase_add_test(tc, write_is_no_refault);
	tcase_add_test(tc, cache_full_of_dirty_data_is_written_and_goes_on);
	tcase_add_test(tc, only_what_is_idle_and_clean_goes);
	tcase_add_test(tc, no_memory_is_said_when_nothing_can_be_cleaned);
	tcase_add_test(tc, split_of_a_folio_not_read_yet_wastes_nothing);
	tcase_add_test(tc, wasted_readahead_is_counted);
	tcase_add_test(tc, several_readers_share_a_cache_that_is_too_small);
	return s;
}
