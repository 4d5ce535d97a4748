/*
 * readahead-window.c - what a reader makes the window do, and the folios that come of it, written down as text
 *
 * A simulated cache knows for each page the order of its folio and the mark. A reader reads through it; each
 * decision becomes a line:
 *
 *      sync 0: 0+4(3) 1xo0 *1xo0 2xo0     a miss at page 0 made a window of 4 pages from 0, the last 3 not asked
 *                                         for: an order-0 folio, a marked one, two more
 *      async 1: 4+8(8) *1xo2 1xo2         the mark on page 1's folio was met
 *      sync 5000: random 1xo0             the window did not move
 */
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "readahead-window.h"

Suite *suite_readahead_window(void);

#define SIM_PAGES       16384

struct sim {
	struct ra_state ra;
	struct ra_env env;
	struct { uint8_t present, order, marked; } pages[SIM_PAGES];    /* the latter two are the folio's */
	char log[65536];
	size_t log_len;
	unsigned failures;              /* folios that could not be inserted */
	unsigned nomem_order;           /* there is no memory for folios this large; 0: for all */
};

static struct sim sim;

static bool sim_cached(void *arg, pgoff_t index)
{
	const struct sim *s = arg;

	return s->pages[index].present;
}

static void sim_init(struct sim *s, uint32_t ra_pages, uint32_t io_pages, uint64_t file_pages)
{
	memset(s, 0, sizeof(*s));
	ra_init(&s->ra, ra_pages);
	s->env = (struct ra_env){
		.file_pages = file_pages ? file_pages : SIM_PAGES, .io_pages = io_pages, .max_order = MAX_ORDER,
		.cached = sim_cached, .arg = s,
	};
}

__attribute__((format(printf, 2, 3)))
static void say(struct sim *s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int n = vsnprintf(s->log + s->log_len, sizeof(s->log) - s->log_len, format, args);
	va_end(args);
	if (n < 0 || s->log_len + (size_t)n >= sizeof(s->log))
		ck_abort_msg("the log is too small");
	s->log_len += (size_t)n;
}

static bool sim_insert(struct sim *s, const struct ra_folio *f)
{
	const uint64_t end = f->index + (UINT64_C(1) << f->order);

	/* what is promised of every folio */
	bool smallest = f->order == s->env.min_order;
	if (f->index % (end - f->index) || f->index >= s->env.file_pages || f->order < s->env.min_order ||
	    (!smallest && (f->order > s->env.max_order || end > s->env.file_pages)))
		ck_abort_msg("folio %ju, order %u must not be; so far:\n%s", (uintmax_t)f->index, f->order,
			     s->log);

	if (s->nomem_order && f->order >= s->nomem_order)
		return false;
	for (pgoff_t i = f->index; i < end; i++) {
		if (s->pages[i].present)
			return false;
	}
	for (pgoff_t i = f->index; i < end; i++) {
		s->pages[i].present = 1;
		s->pages[i].order = (uint8_t)f->order;
		s->pages[i].marked = f->marked;
	}
	return true;
}

static void say_run(struct sim *s, unsigned nr, uint32_t order)
{
	if (nr)
		say(s, " %uxo%u", nr, order);
}

/*
 * Creates a plan's folios and says which; "!" where inserting failed, "|" where a cached page was passed over.
 */
static void sim_carry_out(struct sim *s, struct ra_plan *plan)
{
	struct ra_folio f;
	unsigned run = 0;
	uint32_t run_order = 0;
	pgoff_t next = plan->index;

	while (ra_plan_next(plan, &s->env, &f)) {
		bool jumped = f.index != next, inserted = sim_insert(s, &f);

		if (jumped || !inserted || f.marked || f.order != run_order) {
			say_run(s, run, run_order);
			run = 0;
			run_order = f.order;
		}
		if (jumped)
			say(s, " |");
		if (!inserted) {
			say(s, " !");
			s->failures++;
			ra_plan_failed(plan, &f);
			next = plan->index;
			continue;
		}
		if (f.marked)
			say(s, " *1xo%u", f.order);
		else
			run++;
		next = f.index + (UINT64_C(1) << f.order);
	}
	say_run(s, run, run_order);
	if (ra_plan_next(plan, &s->env, &f))
		ck_abort_msg("a plan went on after its end; so far:\n%s", s->log);
	say(s, "\n");
}

static void sim_sync(struct sim *s, pgoff_t index, uint64_t req)
{
	const struct ra_state before = s->ra;
	struct ra_plan plan;

	ra_sync(&s->ra, index, req, &s->env, &plan);
	say(s, "sync %ju:", (uintmax_t)index);
	if (memcmp(&before, &s->ra, sizeof(before)))
		say(s, " %ju+%u(%u)", (uintmax_t)s->ra.start, s->ra.size, s->ra.async_size);
	else
		say(s, " random");
	sim_carry_out(s, &plan);
}

static void sim_async(struct sim *s, pgoff_t head, uint64_t pages, uint64_t req)
{
	struct ra_plan plan;

	say(s, "async %ju:", (uintmax_t)head);
	if (!ra_async(&s->ra, head, pages, req, &s->env, &plan)) {
		say(s, " nothing\n");
		return;
	}
	say(s, " %ju+%u(%u)", (uintmax_t)s->ra.start, s->ra.size, s->ra.async_size);
	sim_carry_out(s, &plan);
}

/* One read call, as the page cache does it: miss, look again, mark, copy to the end of the folio. */
static void sim_read(struct sim *s, uint64_t pos, uint64_t len)
{
	const uint64_t end = min_u64(pos + len, s->env.file_pages * PAGE_BYTES);
	const pgoff_t last = div_round_up(end, PAGE_BYTES);

	while (pos < end) {
		pgoff_t index = pos / PAGE_BYTES;

		if (!s->pages[index].present)
			sim_sync(s, index, last - index);
		if (!s->pages[index].present)
			ck_abort_msg("page %ju was not read; so far:\n%s", (uintmax_t)index, s->log);

		const uint64_t pages = UINT64_C(1) << s->pages[index].order;
		const pgoff_t head = round_down(index, pages);
		if (s->pages[index].marked) {
			for (pgoff_t i = head; i < head + pages; i++)
				s->pages[i].marked = 0;
			sim_async(s, head, pages, last - head);
		}
		pos = min_u64((head + pages) * PAGE_BYTES, end);
	}
	s->ra.prev_pos = end;
}

static void expect_log(const struct sim *s, const char *what, const char *want)
{
	ck_assert_msg(!strcmp(s->log, want), "%s: got\n%snot\n%s", what, s->log, want);
}

/* --- Sequential readers: every example of the spec ------------------------------------------- */

/* A reader from page @from to page @to; the log must be @want. */
static const struct reader {
	const char *what;
	uint32_t ra_pages, io_pages, read_kib;
	pgoff_t from, to, file_pages;
	const char *want;
} readers[] = {
	{ "window 128 KiB, 4 KiB reads", 32, 0, 4, 0, 130, 0,
	  "sync 0: 0+4(3) 1xo0 *1xo0 2xo0\n"
	  "async 1: 4+8(8) *1xo2 1xo2\n"
	  "async 4: 12+4(4) *1xo2\n"
	  "async 12: 16+8(8) *1xo3\n"
	  "async 16: 24+8(8) *1xo3\n"
	  "async 24: 32+16(16) *1xo4\n"
	  "async 32: 48+16(16) *1xo4\n"
	  "async 48: 64+32(32) *1xo5\n"
	  "async 64: 96+32(32) *1xo5\n"
	  "async 96: 128+32(32) *1xo5\n"
	  "async 128: 160+32(32) *1xo5\n" },
	{ "window 128 KiB, 16 KiB reads", 32, 0, 16, 0, 100, 0,
	  "sync 0: 0+8(4) 4xo0 *1xo0 3xo0\n"
	  "async 4: 8+16(16) *1xo2 3xo2\n"
	  "async 8: 24+24(24) *1xo3 1xo4\n"
	  "async 24: 48+16(16) *1xo4\n"
	  "async 48: 64+32(32) *1xo5\n"
	  "async 64: 96+32(32) *1xo5\n"
	  "async 96: 128+32(32) *1xo5\n" },
	{ "window 128 KiB, 32 KiB reads", 32, 0, 32, 0, 32, 0,
	  "sync 0: 0+16(8) 8xo0 *1xo0 7xo0\n"
	  "async 8: 16+32(32) *1xo2 7xo2\n"
	  "async 16: 48+32(32) *1xo4 1xo4\n" },
#define WANT_128K_LARGE \
	  "sync 0: 0+32(16) 16xo0 *1xo0 15xo0\n" \
	  "async 16: 32+32(32) *1xo2 7xo2\n" \
	  "async 32: 64+32(32) *1xo4 1xo4\n" \
	  "async 64: 96+32(32) *1xo5\n" \
	  "async 96: 128+32(32) *1xo5\n"
	{ "window 128 KiB, 64 KiB reads", 32, 0, 64, 0, 128, 0, WANT_128K_LARGE },
	{ "window 128 KiB, 128 KiB reads", 32, 0, 128, 0, 128, 0, WANT_128K_LARGE },
	{ "window 128 KiB, 512 KiB reads, device likes no more", 32, 8, 512, 0, 128, 0, WANT_128K_LARGE },
	{ "window 128 KiB, 1 MiB reads, device likes 1280 KiB", 32, 320, 1024, 0, 1280, 0,
	  "sync 0: 0+256(128) 128xo0 *1xo0 127xo0\n"
	  "async 128: 256+256(256) *1xo2 63xo2\n"
	  "async 256: 512+256(256) *1xo4 15xo4\n"
	  "async 512: 768+256(256) *1xo6 3xo6\n"
	  "async 768: 1024+256(256) *1xo8\n"
	  "async 1024: 1280+256(256) *1xo8\n" },
	{ "window 1 MiB, 4 KiB reads", 256, 0, 4, 0, 800, 0,
	  "sync 0: 0+4(3) 1xo0 *1xo0 2xo0\n"
	  "async 1: 4+16(16) *1xo2 3xo2\n"
	  "async 4: 20+28(28) *1xo2 1xo3 1xo4\n"
	  "async 20: 48+16(16) *1xo4\n"
	  "async 48: 64+32(32) *1xo5\n"
	  "async 64: 96+32(32) *1xo5\n"
	  "async 96: 128+64(64) *1xo6\n"
	  "async 128: 192+64(64) *1xo6\n"
	  "async 192: 256+128(128) *1xo7\n"
	  "async 256: 384+128(128) *1xo7\n"
	  "async 384: 512+256(256) *1xo8\n"
	  "async 512: 768+256(256) *1xo8\n"
	  "async 768: 1024+256(256) *1xo8\n" },
	{ "window 1 MiB, 64 KiB reads", 256, 0, 64, 0, 800, 0,
	  "sync 0: 0+32(16) 16xo0 *1xo0 15xo0\n"
	  "async 16: 32+64(64) *1xo2 15xo2\n"
	  "async 32: 96+128(128) *1xo4 7xo4\n"
	  "async 96: 224+224(224) *1xo5 3xo6\n"
	  "async 224: 448+64(64) *1xo6\n"
	  "async 448: 512+128(128) *1xo7\n"
	  "async 512: 640+128(128) *1xo7\n"
	  "async 640: 768+256(256) *1xo8\n"
	  "async 768: 1024+256(256) *1xo8\n" },
	{ "window 1 MiB, 128 KiB reads", 256, 0, 128, 0, 1056, 0,
	  "sync 0: 0+64(32) 32xo0 *1xo0 31xo0\n"
	  "async 32: 64+128(128) *1xo2 31xo2\n"
	  "async 64: 192+256(256) *1xo4 15xo4\n"
	  "async 192: 448+256(256) *1xo6 3xo6\n"
	  "async 448: 704+64(64) *1xo6\n"
	  "async 704: 768+128(128) *1xo7\n"
	  "async 768: 896+128(128) *1xo7\n"
	  "async 896: 1024+256(256) *1xo8\n"
	  "async 1024: 1280+256(256) *1xo8\n" },
	{ "window 1 MiB, 1 MiB reads", 256, 0, 1024, 0, 1280, 0,
	  "sync 0: 0+256(128) 128xo0 *1xo0 127xo0\n"
	  "async 128: 256+256(256) *1xo2 63xo2\n"
	  "async 256: 512+256(256) *1xo4 15xo4\n"
	  "async 512: 768+256(256) *1xo6 3xo6\n"
	  "async 768: 1024+256(256) *1xo8\n"
	  "async 1024: 1280+256(256) *1xo8\n" },
	{ "window 4 MiB, 4 KiB reads", 1024, 0, 4, 0, 3100, 0,
	  "sync 0: 0+4(3) 1xo0 *1xo0 2xo0\n"
	  "async 1: 4+16(16) *1xo2 3xo2\n"
	  "async 4: 20+60(60) *1xo2 1xo3 3xo4\n"
	  "async 20: 80+240(240) *1xo4 1xo5 3xo6\n"
	  "async 80: 320+448(448) *1xo6 1xo7 1xo8\n"
	  "async 320: 768+256(256) *1xo8\n"
	  "async 768: 1024+512(512) *1xo9\n"
	  "async 1024: 1536+512(512) *1xo9\n"
	  "async 1536: 2048+1024(1024) *1xo9 1xo9\n"
	  "async 2048: 3072+1024(1024) *1xo9 1xo9\n"
	  "async 3072: 4096+1024(1024) *1xo9 1xo9\n" },
	{ "from the middle, window 128 KiB, 4 KiB reads", 32, 0, 4, 1000, 1125, 0,
	  "sync 1000: random 1xo0\n"
	  "sync 1001: 1001+4(3) 1xo0 *1xo0 2xo0\n"
	  "async 1002: 1005+7(7) *1xo0 1xo1 1xo2\n"
	  "async 1005: 1012+12(12) *1xo2 1xo3\n"
	  "async 1012: 1024+24(24) *1xo4 1xo3\n"
	  "async 1024: 1048+8(8) *1xo3\n"
	  "async 1048: 1056+16(16) *1xo4\n"
	  "async 1056: 1072+16(16) *1xo4\n"
	  "async 1072: 1088+32(32) *1xo5\n"
	  "async 1088: 1120+32(32) *1xo5\n"
	  "async 1120: 1152+32(32) *1xo5\n" },
	{ "50 pages, window 128 KiB, 4 KiB reads", 32, 0, 4, 0, 50, 50,
	  "sync 0: 0+4(3) 1xo0 *1xo0 2xo0\n"
	  "async 1: 4+8(8) *1xo2 1xo2\n"
	  "async 4: 12+4(4) *1xo2\n"
	  "async 12: 16+8(8) *1xo3\n"
	  "async 16: 24+8(8) *1xo3\n"
	  "async 24: 32+16(16) *1xo4\n"
	  "async 32: 48+16(16) *1xo1\n"
	  "async 48: 64+32(32)\n" },
	{ "1 page", 32, 0, 4, 0, 1, 1, "sync 0: 0+4(3) 1xo0\n" },
	{ "2 pages, read at once", 32, 0, 64, 0, 2, 2, "sync 0: 0+4(2) 2xo0\n" },
	{ "no readahead", 0, 320, 16, 0, 4, 0,
	  "sync 0: random 1xo0\n" "sync 1: random 1xo0\n" "sync 2: random 1xo0\n" "sync 3: random 1xo0\n" },
	{ "window of one page", 1, 0, 4, 0, 3, 0,
	  "sync 0: 0+1(0) 1xo0\n" "sync 1: 1+1(0) 1xo0\n" "sync 2: 2+1(0) 1xo0\n" },
};

static void sim_read_pages(struct sim *s, pgoff_t from, pgoff_t to, uint32_t read_kib)
{
	for (uint64_t pos = from * PAGE_BYTES; pos < to * PAGE_BYTES; pos += read_kib * UINT64_C(1024))
		sim_read(s, pos, read_kib * UINT64_C(1024));
}

START_TEST(sequential_reader_gets_these_windows_and_folios)
{
	const struct reader *r = &readers[_i];

	sim_init(&sim, r->ra_pages, r->io_pages, r->file_pages);
	sim_read_pages(&sim, r->from, r->to, r->read_kib);
	expect_log(&sim, r->what, r->want);
	ck_assert_uint_eq(sim.failures, 0);
}
END_TEST

/* --- Other readers --------------------------------------------------------------------------- */

START_TEST(interleaved_streams_of_one_handle_both_keep_their_windows)
{
	static const char first[] =
		"sync 0: 0+4(3) 1xo0 *1xo0 2xo0\n"
		"sync 5000: random 1xo0\n"
		"async 1: 4+8(8) *1xo2 1xo2\n"
		"sync 5001: random 1xo0\n"
		"sync 5002: 5002+3(1) 2xo0 *1xo0\n"     /* two pages of history */
		"async 4: 12+16(16) *1xo2 3xo2\n"       /* a mark the state does not know */
		"async 5004: 5005+3(3) *1xo0 1xo1\n"
		"async 5005: 5008+6(6) *1xo2 1xo1\n";   /* still this stream's state */

	sim_init(&sim, 32, 0, 0);
	for (pgoff_t i = 0; i < 1000; i++) {
		sim_read_pages(&sim, i, i + 1, 4);
		sim_read_pages(&sim, 5000 + i, 5001 + i, 4);
	}
	ck_assert_msg(!strncmp(sim.log, first, strlen(first)), "got\n%s", sim.log);
	ck_assert_msg(!strstr(sim.log + strlen(first), "\nsync"), "a window was lost:\n%s", sim.log);
	ck_assert_uint_eq(sim.failures, 0);
	/* both end in full windows of one large folio */
	ck_assert_ptr_nonnull(strstr(sim.log, "async 960: 992+32(32) *1xo5\n"));
	ck_assert_ptr_nonnull(strstr(sim.log, "async 5952: 5984+32(32) *1xo5\n"));
}
END_TEST

START_TEST(backward_reader_gets_single_pages)
{
	sim_init(&sim, 32, 0, 0);
	for (pgoff_t i = 5; i > 1; i--)
		sim_read_pages(&sim, i - 1, i, 4);
	expect_log(&sim, "backward",
		   "sync 4: random 1xo0\n" "sync 3: random 1xo0\n" "sync 2: random 1xo0\n"
		   "sync 1: random 1xo0\n");
	ck_assert_uint_eq(sim.ra.size, 0);

	/* Page 0 looks like a start; what is there already is passed over. */
	sim.log_len = 0;
	sim_read_pages(&sim, 0, 1, 4);
	expect_log(&sim, "at last", "sync 0: 0+4(3) 1xo0 !\n");
}
END_TEST

START_TEST(random_advice_reads_what_is_asked_for)
{
	sim_init(&sim, 32, 0, 0);
	sim.ra.random = true;
	sim_read_pages(&sim, 0, 48, 64);
	sim_read_pages(&sim, 1001, 1017, 64);
	expect_log(&sim, "64 KiB reads",
		   "sync 0: random 16xo0\n" "sync 16: random 16xo0\n" "sync 32: random 16xo0\n"
		   "sync 1001: random 16xo0\n");
	ck_assert_uint_eq(sim.ra.size, 0);

	/* At once at most the larger of the window and what the device likes; cached pages are passed over. */
	sim_init(&sim, 32, 0, 0);
	sim.ra.random = true;
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 8, .order = 1 }));
	sim_read_pages(&sim, 0, 64, 256);
	sim.env.io_pages = 40;
	sim_read_pages(&sim, 64, 128, 256);
	expect_log(&sim, "256 KiB reads",
		   "sync 0: random 8xo0 | 22xo0\n" "sync 32: random 32xo0\n" "sync 64: random 40xo0\n"
		   "sync 104: random 24xo0\n");
}
END_TEST

START_TEST(page_read_again_or_next_is_sequential)
{
	sim_init(&sim, 32, 0, 0);
	sim_read(&sim, 1000 * PAGE_BYTES, 512);
	memset(&sim.pages[1000], 0, sizeof(sim.pages[0]));
	sim_read(&sim, 1000 * PAGE_BYTES + 512, 512);
	sim_read(&sim, 2000 * PAGE_BYTES, 512);
	sim_read(&sim, 2001 * PAGE_BYTES, 512);
	sim_read(&sim, 3000 * PAGE_BYTES, 512);
	sim_read(&sim, 3002 * PAGE_BYTES, 512);
	expect_log(&sim, "pages",
		   "sync 1000: random 1xo0\n" "sync 1000: 1000+4(3) 1xo0 *1xo0 2xo0\n"
		   "sync 2000: random 1xo0\n" "sync 2001: 2001+4(3) 1xo0 *1xo0 2xo0\n"
		   "sync 3000: random 1xo0\n" "sync 3002: random 1xo0\n");
}
END_TEST

START_TEST(history_tells_a_stream_the_state_forgot)
{
	sim_init(&sim, 32, 0, 0);
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 0, .order = 2 }));
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 104, .order = 2 }));
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 256, .order = 8 }));
	sim_sync(&sim, 4, 1);           /* back to page 0: counts twice */
	sim_sync(&sim, 108, 3);
	sim_sync(&sim, 108, 4);         /* no more history than is wanted now */
	sim_sync(&sim, 512, 1);         /* a window's worth at most */
	expect_log(&sim, "history",
		   "sync 4: 4+9(1) 8xo0 *1xo0\n" "sync 108: 108+7(1) 6xo0 *1xo0\n" "sync 108: random\n"
		   "sync 512: 512+32(1) 31xo0 *1xo0\n");
}
END_TEST

START_TEST(stray_mark_starts_a_window_at_the_next_gap)
{
	sim_init(&sim, 32, 0, 0);
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 64, .order = 5 }));
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 96, .order = 0 }));
	sim_async(&sim, 64, 32, 1);     /* page 97 is 33 away */
	sim_async(&sim, 65, 1, 1);      /* now 32 */
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 200, .order = 1 }));
	sim.ra.order = 0;
	sim_async(&sim, 200, 2, 6);     /* what is wanted counts for the size */
	sim.ra.ra_pages = 0;
	sim_async(&sim, 64, 32, 1);
	expect_log(&sim, "marks",
		   "async 64: nothing\n" "async 65: 97+31(31) *1xo0 1xo1 7xo2\n"
		   "async 200: 202+14(14) *1xo1 3xo2\n" "async 64: nothing\n");
}
END_TEST

/* --- Folios ---------------------------------------------------------------------------------- */

START_TEST(folio_in_the_way_leaves_the_rest_to_small_ones)
{
	sim_init(&sim, 32, 0, 0);
	sim.ra = (struct ra_state){ .start = 32, .size = 32, .async_size = 32, .order = 2, .ra_pages = 32 };
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 82, .order = 1 }));
	sim_async(&sim, 32, 16, 1);
	expect_log(&sim, "in the second", "async 32: 64+32(32) *1xo4 ! 2xo0 | 12xo0\n");

	sim_init(&sim, 32, 0, 0);
	sim.ra = (struct ra_state){ .start = 32, .size = 32, .async_size = 32, .order = 2, .ra_pages = 32 };
	ck_assert(sim_insert(&sim, &(struct ra_folio){ .index = 64, .order = 0 }));
	sim_async(&sim, 32, 16, 1);
	expect_log(&sim, "at the mark", "async 32: 64+32(32) ! | 31xo0\n");
}
END_TEST

START_TEST(plan_ends_though_nothing_can_be_inserted)
{
	struct ra_plan plan;
	struct ra_folio f;
	unsigned tries = 0;

	sim_init(&sim, 32, 0, 0);
	sim.ra = (struct ra_state){ .start = 32, .size = 32, .async_size = 32, .order = 2, .ra_pages = 32 };
	ck_assert(ra_async(&sim.ra, 32, 16, 1, &sim.env, &plan));
	for (; ra_plan_next(&plan, &sim.env, &f) && tries < 100; tries++)
		ra_plan_failed(&plan, &f);
	ck_assert_uint_eq(tries, 1 + 32);       /* one large, then each page once */
}
END_TEST

START_TEST(no_memory_for_large_folios_still_reads_and_marks)
{
	sim_init(&sim, 32, 0, 0);
	sim.nomem_order = 3;
	sim_read_pages(&sim, 0, 40, 4);
	expect_log(&sim, "small ones only",
		   "sync 0: 0+4(3) 1xo0 *1xo0 2xo0\n"
		   "async 1: 4+8(8) *1xo2 1xo2\n"
		   "async 4: 12+4(4) *1xo2\n"
		   "async 12: 16+8(8) ! *1xo0 7xo0\n"
		   "async 16: 24+8(8) ! *1xo0 7xo0\n"
		   "async 24: 32+16(16) ! *1xo0 15xo0\n"
		   "async 32: 48+16(16) ! *1xo0 15xo0\n");
}
END_TEST

START_TEST(largest_order_is_kept)
{
	sim_init(&sim, 32, 0, 0);
	sim.env.max_order = 0;
	sim_read_pages(&sim, 0, 33, 4);
	expect_log(&sim, "no large folios",
		   "sync 0: 0+4(3) 1xo0 *1xo0 2xo0\n"
		   "async 1: 4+8(8) *1xo0 7xo0\n"
		   "async 4: 12+16(16) *1xo0 15xo0\n"
		   "async 12: 28+32(32) *1xo0 31xo0\n"
		   "async 28: 60+32(32) *1xo0 31xo0\n");
	sim_init(&sim, 32, 0, 0);
	sim.env.max_order = 3;
	sim_read_pages(&sim, 0, 40, 16);
	expect_log(&sim, "up to order 3",
		   "sync 0: 0+8(4) 4xo0 *1xo0 3xo0\n"
		   "async 4: 8+16(16) *1xo2 3xo2\n"
		   "async 8: 24+24(24) *1xo3 2xo3\n"
		   "async 24: 48+16(16) *1xo3 1xo3\n");
}
END_TEST

START_TEST(smallest_order_is_kept)
{
	sim_init(&sim, 32, 0, 103);
	sim.env.min_order = 2;
	sim_read_pages(&sim, 0, 15, 4);
	sim_read_pages(&sim, 90, 91, 4);
	sim_read_pages(&sim, 102, 103, 4);
	expect_log(&sim, "order 2",
		   "sync 0: 0+4(3) *1xo2\n"
		   "async 0: 4+8(8) *1xo2 1xo2\n"
		   "async 4: 12+16(16) *1xo2 1xo3 1xo2\n"
		   "async 12: 28+4(4) *1xo2\n"
		   "sync 90: random 1xo2\n"
		   "sync 102: random 1xo2\n");         /* past the end of the file, as a whole folio must be */
}
END_TEST

/*
 * Whatever the sizes: nothing is created twice, and after its start a sequential reader meets marks, never
 * misses.
 */
START_TEST(sequential_reader_never_misses_once_started)
{
	static const uint32_t windows[] = { 2, 7, 32, 100, 256, 1024 }, reads[] = { 1, 4, 12, 64, 200, 1024 };
	static const pgoff_t starts[] = { 0, 333, 1000 };

	for (size_t i = 0; i < ARRAY_SIZE(windows) * ARRAY_SIZE(reads) * ARRAY_SIZE(starts); i++) {
		const uint32_t window = windows[i % ARRAY_SIZE(windows)];
		const uint32_t kib = reads[i / ARRAY_SIZE(windows) % ARRAY_SIZE(reads)];
		const pgoff_t start = starts[i / (ARRAY_SIZE(windows) * ARRAY_SIZE(reads))];

		sim_init(&sim, window, window / 2 * 3, 1777);
		sim.env.min_order = (uint32_t)_i;
		if (_i % 2)
			sim.env.max_order = (uint32_t)_i;
		sim_read_pages(&sim, start, 1777, kib);
		ck_assert_msg(sim.failures == 0, "folios met, window %u, reads of %u KiB:\n%s", window, kib,
			      sim.log);

		unsigned misses = 0;
		for (const char *at = sim.log; (at = strstr(at, "sync ")); at++)
			misses += at == sim.log || at[-1] == '\n';
		ck_assert_msg(misses <= 2, "%u misses, window %u, reads of %u KiB:\n%s", misses, window, kib,
			      sim.log);
	}
}
END_TEST

Suite *suite_readahead_window(void)
{
	Suite *s = suite_create("readahead-window");
	TCase *tc = tcase_create("sequential");

	tcase_add_loop_test(tc, sequential_reader_gets_these_windows_and_folios, 0, ARRAY_SIZE(readers));
	tcase_add_loop_test(tc, sequential_reader_never_misses_once_started, 0, 6);     /* smallest order */
	suite_add_tcase(s, tc);

	tc = tcase_create("others");
	tcase_add_test(tc, interleaved_streams_of_one_handle_both_keep_their_windows);
	tcase_add_test(tc, backward_reader_gets_single_pages);
	tcase_add_test(tc, random_advice_reads_what_is_asked_for);
	tcase_add_test(tc, page_read_again_or_next_is_sequential);
	tcase_add_test(tc, history_tells_a_stream_the_state_forgot);
	tcase_add_test(tc, stray_mark_starts_a_window_at_the_next_gap);
	suite_add_tcase(s, tc);

	tc = tcase_create("folios");
	tcase_add_test(tc, folio_in_the_way_leaves_the_rest_to_small_ones);
	tcase_add_test(tc, plan_ends_though_nothing_can_be_inserted);
	tcase_add_test(tc, no_memory_for_large_folios_still_reads_and_marks);
	tcase_add_test(tc, largest_order_is_kept);
	tcase_add_test(tc, smallest_order_is_kept);
	suite_add_tcase(s, tc);
	return s;
}
