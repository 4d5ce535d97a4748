/*
 * throttle-math.c - the control loop's arithmetic, against vectors computed elsewhere; then the closed loop
 *
 * The vectors are those of the throttling spec (T05 to T66, B1 to B3). Its standard domain has 199951 units of
 * limit and a background limit of 99853: free run ends at 149902, the set point is 174926.
 */
#include <check.h>
#include <inttypes.h>

#include "throttle-math.h"

Suite *suite_throttle_math(void);

static const struct dirty_limits std = { 199951, 99853 };
#define STD_HARD        199951U
#define STD_SETPOINT    174926U

/* Like ck_assert_uint_eq(), saying which row of a table it was. */
#define row_eq(i, got, want) do { \
		uint64_t got_ = (got), want_ = (want); \
		ck_assert_msg(got_ == want_, "row %zu: " #got " is %" PRIu64 ", not %" PRIu64, \
			      (size_t)(i), got_, want_); \
	} while (0)

/* --- Limits ---------------------------------------------------------------------------------- */

START_TEST(limits_round_up_and_order_themselves)
{
	const uint64_t mib = 1 << 20;
	struct dirty_limits l = dirty_limits_from_bytes(3276 * mib, 1638 * mib);        /* T05 */
	ck_assert_uint_eq(l.thresh, 838656);
	ck_assert_uint_eq(l.bg, 419328);
	ck_assert_uint_eq(dirty_freerun(l), 628992);
	ck_assert_uint_eq(dirty_setpoint(l, dirty_hard_limit(l, 0)), 733824);

	l = dirty_limits_from_units(div_round_up(8193, 4096), 99853);                   /* T07 */
	ck_assert_uint_eq(l.thresh, 3);
	ck_assert_uint_eq(l.bg, 1);
	ck_assert_uint_eq(dirty_freerun(l), 2);

	ck_assert_uint_eq(dirty_freerun(std), 149902);
	ck_assert_uint_eq(dirty_setpoint(std, STD_HARD), STD_SETPOINT);

	static const struct { uint64_t dirty, bg, thresh_units, bg_units; } edges[] = {
		{ 0, 0, 0, 0 }, { 0, 4096, 0, 0 }, { 1, 0, 1, 0 }, { 1, 1, 1, 0 }, { 4096, 4096, 1, 0 },
		{ 4097, 1, 2, 1 },
		{ 40960, 40960, 10, 5 }, { 40960, 36864, 10, 9 },
		{ UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX / 2 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(edges); i++) {
		l = dirty_limits_from_bytes(edges[i].dirty, edges[i].bg);
		row_eq(i, l.thresh, edges[i].thresh_units);
		row_eq(i, l.bg, edges[i].bg_units);
		ck_assert(dirty_setpoint(l, dirty_hard_limit(l, 0)) <= l.thresh);
	}
}
END_TEST

START_TEST(tracked_limit_rises_at_once_and_falls_slowly)
{
	static const struct { uint64_t limit, thresh, dirty, want; } t11[] = {
		{ 199951, 250000, 0, 250000 }, { 199951, 100000, 150000, 198391 },
		{ 199951, 100000, 50000, 196828 },
		{ 100032, 100000, 0, 100031 }, { 100031, 100000, 0, 100031 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(t11); i++)
		row_eq(i, dirty_limit_step(t11[i].limit, t11[i].thresh, t11[i].dirty), t11[i].want);

	uint64_t limit = 200000;                                                        /* T12 */
	for (int updates = 1; updates <= 300; updates++) {
		limit = dirty_limit_step(limit, 100000, 0);
		ck_assert_msg((limit == 100031) == (updates >= 272), "%d updates: %" PRIu64, updates, limit);
	}
	ck_assert_uint_eq(dirty_hard_limit(std, 250000), 250000);
	ck_assert_uint_eq(dirty_hard_limit(std, 100), 199951);
}
END_TEST

START_TEST(free_runner_looks_again_after_the_root_of_the_room)
{
	static const struct { uint64_t dirty, thresh, want; } t60[] = {
		{ 0, 199951, 256 }, { 149902, 199951, 128 }, { 187500, 200000, 64 }, { 199950, 199951, 1 },
		{ 199951, 199951, 1 }, { 200000, 199951, 1 }, { 0, 0, 1 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(t60); i++)
		row_eq(i, poll_interval(t60[i].dirty, t60[i].thresh), t60[i].want);
}
END_TEST

/* --- Shares ---------------------------------------------------------------------------------- */

static void expect_fraction(const struct fprop_domain *d, struct fprop_local *l, uint64_t num, uint64_t den)
{
	struct fraction f = fprop_fraction(d, l);

	ck_assert_msg(f.num == num && f.den == den, "%" PRIu64 "/%" PRIu64 ", not %" PRIu64 "/%" PRIu64,
		      f.num, f.den, num, den);
}

START_TEST(share_is_own_completions_of_all_halved_every_period)
{
	struct fprop_domain d;
	struct fprop_local a, b;

	fprop_domain_init(&d);
	fprop_local_init(&a, &d);
	fprop_local_init(&b, &d);
	expect_fraction(&d, &a, 0, 1);                          /* T13 */
	fprop_add(&d, &a, 1, 0);
	expect_fraction(&d, &a, 1, 2);                          /* T14 */

	fprop_domain_init(&d);
	fprop_local_init(&a, &d);
	fprop_add(&d, &a, 300, 0);
	fprop_add(&d, &b, 100, 0);
	expect_fraction(&d, &a, 300, 401);                      /* T15 */
	expect_fraction(&d, &b, 100, 401);
	ck_assert(fprop_new_period(&d, 1));
	ck_assert_uint_eq(d.events, 200);                       /* T16 */
	expect_fraction(&d, &a, 150, 200);
	expect_fraction(&d, &b, 50, 200);
	fprop_add(&d, &b, 200, 0);
	expect_fraction(&d, &a, 150, 400);                      /* T17 */
	expect_fraction(&d, &b, 250, 400);
	ck_assert(fprop_new_period(&d, 2));
	ck_assert_uint_eq(d.events, 100);                       /* T18 */
	expect_fraction(&d, &a, 37, 100);
	expect_fraction(&d, &b, 62, 100);
	ck_assert_uint_eq(wb_share(199951, fprop_fraction(&d, &a)), 73981);
	ck_assert_uint_eq(wb_share(199951, fprop_fraction(&d, &b)), 123969);

	static const struct { uint64_t events, a, b; bool more; } t19[] = {
		{ 50, 18, 31, true }, { 25, 9, 15, true }, { 12, 4, 7, true }, { 6, 2, 3, true },
		{ 3, 1, 1, true },
		{ 1, 0, 0, true }, { 1, 0, 0, false },
	};
	for (size_t i = 0; i < ARRAY_SIZE(t19); i++) {
		row_eq(i, fprop_new_period(&d, 1), t19[i].more);
		row_eq(i, d.events, t19[i].events);
		row_eq(i, fprop_fraction(&d, &a).num, t19[i].a);
		row_eq(i, fprop_fraction(&d, &b).num, t19[i].b);
	}
}
END_TEST

START_TEST(late_timer_catches_up_and_idle_timer_stops)
{
	struct fprop_domain d;
	struct fprop_local l;

	fprop_domain_init(&d);
	fprop_local_init(&l, &d);
	fprop_timer(&d, 100000);                                /* off: nothing happens */
	ck_assert_uint_eq(d.period, 0);
	fprop_add(&d, &l, 799, 0);
	ck_assert_uint_eq(d.timer_ms, 3000);
	fprop_add(&d, &l, 0, 500);                              /* only the first arms it */
	fprop_timer(&d, 2999);
	ck_assert_uint_eq(d.period, 0);
	fprop_timer(&d, 10000);                                 /* T20 */
	ck_assert_uint_eq(d.period, 3);
	ck_assert_uint_eq(d.timer_ms, 12000);
	expect_fraction(&d, &l, 99, 100);
	fprop_timer(&d, 12000 + 63 * FPROP_PERIOD_MS);          /* 64 periods: shifts by 64 are halvings too */
	ck_assert_uint_eq(d.events, 0);
	ck_assert_uint_eq(d.period, 67);
	expect_fraction(&d, &l, 0, 1);
	fprop_timer(&d, d.timer_ms);
	ck_assert_uint_eq(d.timer_ms, 0);
	fprop_add(&d, &l, 1, UINT64_MAX - FPROP_PERIOD_MS + 1); /* a time of 0 would mean off */
	ck_assert_uint_eq(d.timer_ms, 1);
}
END_TEST

START_TEST(share_of_a_limit_is_its_fraction)
{
	uint64_t thresh = wb_share(199951, (struct fraction){ 3, 4 });

	ck_assert_uint_eq(thresh, 149963);                      /* T22 */
	ck_assert_uint_eq(wb_share_bg(thresh, std), 74889);
	ck_assert_uint_eq(wb_share_bg(0, (struct dirty_limits){ 0, 0 }), 0);
	ck_assert_uint_eq(wb_share(199951, (struct fraction){ 0, 1 }), 0);
	ck_assert_uint_eq(wb_share(UINT32_MAX, (struct fraction){ UINT64_MAX, UINT64_MAX }), UINT32_MAX);
	ck_assert_uint_eq(wb_share(1000, (struct fraction){ UINT64_C(1) << 62, UINT64_C(1) << 63 }), 500);
}
END_TEST

/* --- Position -------------------------------------------------------------------------------- */

START_TEST(position_is_two_at_free_run_one_at_set_point_zero_at_limit)
{
	static const struct { uint64_t setpoint, limit, dirty, want; } rows[] = {
		/* T31 */
		{ STD_SETPOINT, STD_HARD, 0, 2048 }, { STD_SETPOINT, STD_HARD, 100000, 2048 },
		{ STD_SETPOINT, STD_HARD, 149902, 2045 }, { STD_SETPOINT, STD_HARD, 150000, 2033 },
		{ STD_SETPOINT, STD_HARD, 160000, 1240 }, { STD_SETPOINT, STD_HARD, 170000, 1031 },
		{ STD_SETPOINT, STD_HARD, 174926, 1024 }, { STD_SETPOINT, STD_HARD, 180000, 1015 },
		{ STD_SETPOINT, STD_HARD, 190000, 801 }, { STD_SETPOINT, STD_HARD, 195000, 496 },
		{ STD_SETPOINT, STD_HARD, 199950, 2 }, { STD_SETPOINT, STD_HARD, 199951, 0 },
		/* T32 */
		{ 150000, 200000, 100000, 2045 }, { 150000, 200000, 125000, 1151 },
		{ 150000, 200000, 140000, 1031 },
		{ 150000, 200000, 150000, 1024 }, { 150000, 200000, 160000, 1016 },
		{ 150000, 200000, 175000, 896 },
		{ 150000, 200000, 187500, 594 }, { 150000, 200000, 200000, 2 }, { 150000, 200000, 210000, 0 },
		/* as far off as can be */
		{ UINT32_MAX, UINT32_MAX, 0, 2048 }, { 0, 0, UINT32_MAX, 0 }, { 0, 0, 0, 1024 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		row_eq(i, pos_poly(rows[i].setpoint, rows[i].dirty, rows[i].limit), rows[i].want);
}
END_TEST

START_TEST(position_alone_would_hold_n_writers_just_below_the_limit)
{
	static const struct { unsigned writers; uint64_t dirty; } t40[] = {
		{ 2, 194795 }, { 4, 197679 }, { 8, 198876 }, { 16, 199438 }, { 32, 199683 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(t40); i++) {
		uint64_t dirty = STD_SETPOINT;

		while (pos_poly(STD_SETPOINT, dirty, STD_HARD) > POS_ONE / t40[i].writers)
			dirty++;
		row_eq(i, dirty, t40[i].dirty);
	}
}
END_TEST

START_TEST(position_bends_by_the_devices_own_share)
{
	static const struct { uint64_t dirty, wb_thresh, wb_dirty, avg_bw, want; } rows[] = {
		{ 174926, 199951, 174926, 25600, 1023 },        /* T33: one device */
		{ 160000, 199951, 160000, 25600, 1330 },        /* T34 */
		{ 180000, 199951, 180000, 25600, 989 },
		{ 199951, 199951, 199951, 25600, 0 },
		{ 174926, 99975, 87463, 25600, 1023 },          /* T35: half of the limit */
		{ 174926, 99975, 174926, 25600, 436 },
		{ 174926, 99975, 10000, 25600, 7717 },          /* T36: runs dry */
		{ 174926, 99975, 2000, 25600, 12784 },
		{ 174926, 99975, 5800, 25600, 12576 },          /* just below an eighth of the reserve */
		{ 174926, 99975, 195000, 25600, 301 },          /* just before the line is cut off */
		{ 174926, 1000, 20000, 25600, 256 },            /* T37: never below a quarter by the line */
		{ 174926, 1000, 100, 2560, 14536 },             /* T38: small share, raised by the room left */
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct pos_input in = {
			.limits = std, .hard = STD_HARD, .dirty = rows[i].dirty, .avg_bw = rows[i].avg_bw,
			.wb_thresh = rows[i].wb_thresh, .wb_dirty = rows[i].wb_dirty,
		};
		row_eq(i, pos_ratio(&in), rows[i].want);
	}
}
END_TEST

START_TEST(rates_of_a_device_gone_idle_do_not_wrap)
{
	struct wb_rate rate = { .dirty_ratelimit = 182345947 };
	struct pos_input in = {
		.limits = { UINT64_C(1) << 31, UINT64_C(1) << 30 }, .hard = UINT64_C(1) << 31, .dirty = (UINT64_C(3) << 29) + 1,
		.wb_thresh = UINT64_C(1) << 31, .wb_dirty = (UINT64_C(1) << 27) + 100, .avg_bw = 1,
	};

	ck_assert_uint_eq(wb_task_rate(&rate, UINT64_C(472707366706)), UINT64_C(84176047300665859));
	ck_assert_uint_gt(pos_ratio(&in), UINT64_C(4000000000000));
}
END_TEST

/* The limit fell to a hundredth, the tracked one has not: an eighth of the room is above the new limit. */
START_TEST(position_survives_room_larger_than_the_limit)
{
	struct pos_input in = {
		.limits = { 2000, 1000 }, .hard = 199951, .dirty = 1600,
		.wb_thresh = 0, .wb_dirty = 1600, .avg_bw = 25600,
	};

	ck_assert_uint_eq(pos_ratio(&in), 3030);
	ck_assert_uint_eq(pos_ratio(&(struct pos_input){ .hard = 0 }), 0);
	ck_assert_uint_gt(pos_ratio(&(struct pos_input){ .limits = { 1, 0 }, .hard = 1 }), 0);
}
END_TEST

/* --- Rates ----------------------------------------------------------------------------------- */

START_TEST(bandwidth_is_measured_and_averaged)
{
	static const struct { uint64_t old, avg, written, elapsed, bw, new_avg; } rows[] = {
		/* T41 */
		{ 25600, 25600, 5120, 200, 25600, 25600 }, { 25600, 25600, 10240, 200, 26850, 25600 },
		{ 25600, 25600, 0, 200, 24350, 25600 }, { 30000, 25600, 8000, 200, 30488, 26150 },
		{ 20000, 25600, 2000, 200, 19511, 24900 },
		{ 25600, 30000, 5120, 200, 25600, 29450 },
		/* T42: beyond the period, and at it */
		{ 25600, 25600, 100000, 5000, 20000, 20000 }, { 25600, 25600, 0, 5000, 0, 1 },
		{ 25600, 25600, 1000, 4096, 244, 25600 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct wb_rate r;

		wb_rate_init(&r, 777, 888, 1000);
		r.write_bw = rows[i].old;
		r.avg_bw = rows[i].avg;
		wb_rate_update_bandwidth(&r, 777 + rows[i].written, 999, 1000 + rows[i].elapsed);
		row_eq(i, r.write_bw, rows[i].bw);
		row_eq(i, r.avg_bw, rows[i].new_avg);
		row_eq(i, r.written_stamp, 777 + rows[i].written);
		row_eq(i, r.dirtied_stamp, 999);
		row_eq(i, r.stamp_ms, 1000 + rows[i].elapsed);
	}
}
END_TEST

START_TEST(bandwidth_converges_from_either_side)
{
	static const struct { unsigned updates; uint64_t bw, avg; } faster[] = {        /* T43: to 51200 */
		{ 1, 26850, 25600 }, { 2, 28038, 25756 }, { 3, 29168, 26041 }, { 5, 31266, 26907 },
		{ 10, 35677, 30047 },
		{ 20, 41787, 36890 }, { 50, 49095, 47769 }, { 100, 51019, 50906 },
	}, slower[] = {                                                                 /* T43b: to 12800 */
		{ 1, 24975, 25600 }, { 2, 24380, 25522 }, { 3, 23814, 25380 }, { 5, 22764, 24947 },
		{ 10, 20555, 23376 },
		{ 20, 17497, 19950 }, { 50, 13838, 14505 }, { 100, 12875, 12933 },
	};
	struct wb_rate up, down;

	wb_rate_init(&up, 0, 0, 0);
	wb_rate_init(&down, 0, 0, 0);
	for (unsigned n = 1, row = 0; row < ARRAY_SIZE(faster); n++) {
		wb_rate_update_bandwidth(&up, n * 10240, 0, n * 200);
		wb_rate_update_bandwidth(&down, n * 2560, 0, n * 200);
		if (n != faster[row].updates)
			continue;
		row_eq(row, up.write_bw, faster[row].bw);
		row_eq(row, up.avg_bw, faster[row].avg);
		row_eq(row, down.write_bw, slower[row].bw);
		row_eq(row, down.avg_bw, slower[row].avg);
		row++;
	}
}
END_TEST

START_TEST(ratelimit_moves_only_where_level_and_rates_agree)
{
	static const struct { uint64_t rl, balanced, pos, bw, dirtied, dirty, new_rl, new_balanced; } rows[] = {
		{ 25600, 6500, 900, 25600, 20480, 180000, 25575, 5625 },        /* T43c */
		{ 25600, 6500, 900, 25600, 20480, 174926, 25575, 5625 },        /* at it is not below it */
		{ 25600, 25401, 900, 25600, 20480, 180000, 25600, 5625 },       /* near enough: shift 64 */
		{ 1000, 25600, 2048, 25600, 800, 160000, 1126, 12803 },         /* T43d */
		{ 25600, 25600, 1024, 25600, 20480, 180000, 25600, 6400 },      /* T43e */
		{ 6400, 6400, 1024, 25600, 5120, 174926, 6400, 6400 },
		{ 6400, 6000, 1100, 25600, 4000, 160000, 6400, 8800 },
		{ 100, 100, 0, 25600, 0, 199951, 100, 25600 },                  /* T43f */
		{ 1, 1, 2048, 25600, 1, 100, 1, 15360 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct wb_rate r;

		wb_rate_init(&r, 55, 66, 5000);
		r.avg_bw = rows[i].bw;
		r.dirty_ratelimit = rows[i].rl;
		r.balanced_ratelimit = rows[i].balanced;
		wb_rate_update_ratelimit(&r, rows[i].pos, 66 + rows[i].dirtied, rows[i].dirty, STD_SETPOINT,
					 5200);
		row_eq(i, r.dirty_ratelimit, rows[i].new_rl);
		row_eq(i, r.balanced_ratelimit, rows[i].new_balanced);
		row_eq(i, r.stamp_ms, 5000);
		row_eq(i, r.dirtied_stamp, 66);
	}
}
END_TEST

START_TEST(totals_or_clock_going_back_count_as_nothing)
{
	struct wb_rate r;

	wb_rate_init(&r, 5000, 5000, 1000);
	/* as if nothing was dirtied */
	wb_rate_update_ratelimit(&r, POS_ONE, 4000, 180000, STD_SETPOINT, 1200);
	ck_assert_uint_eq(r.balanced_ratelimit, 25600);
	wb_rate_update_bandwidth(&r, 4000, 4000, 1200);
	ck_assert_uint_eq(r.write_bw, 24350);
	ck_assert(!wb_rate_is_due(&r, 1000));
	/* at least one tick passed */
	wb_rate_update_bandwidth(&r, 4000, 4000, 1100);
	ck_assert_uint_eq(r.write_bw, 24344);
}
END_TEST

START_TEST(silence_restarts_the_estimate_without_changing_it)
{
	struct wb_rate r;

	wb_rate_init(&r, 0, 0, 1000);
	ck_assert(!wb_rate_is_due(&r, 1200));
	ck_assert(wb_rate_is_due(&r, 1201));
	ck_assert(!wb_rate_is_stale(&r, 2000));
	ck_assert(wb_rate_is_stale(&r, 2001));
	wb_rate_restart(&r, 70, 90, 60000);
	ck_assert_uint_eq(r.write_bw, BANDWIDTH_INITIAL);
	ck_assert_uint_eq(r.avg_bw, BANDWIDTH_INITIAL);
	wb_rate_update_bandwidth(&r, 70 + 5120, 90, 60200);
	ck_assert_uint_eq(r.write_bw, BANDWIDTH_INITIAL);
}
END_TEST

/* --- Pauses ---------------------------------------------------------------------------------- */

START_TEST(longest_pause_never_lets_the_device_run_dry)
{
	static const struct { uint64_t bw, wb_dirty, want; } t51[] = {
		{ 25600, 100000, 200 }, { 25600, 20000, 100 }, { 25600, 1000, 5 }, { 2560, 100, 5 },
		{ 256, 10, 4 },
		{ 256000, 100000, 50 }, { 25600, 0, 1 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(t51); i++)
		row_eq(i, pause_max(t51[i].bw, t51[i].wb_dirty), t51[i].want);
}
END_TEST

START_TEST(pause_grows_with_writers_and_is_worth_its_look)
{
	static const struct { uint64_t bw, rl, max, task_rate, min, next; } rows[] = {
		/* T52 */
		{ 25600, 25600, 200, 25600, 6, 250 }, { 25600, 6400, 200, 6400, 15, 181 },
		{ 25600, 800, 200, 800, 30, 45 },
		{ 25600, 6400, 20, 6400, 6, 68 },
		{ 25600, 400, 200, 400, 41, 32 },       /* not 26 every 68 ms */
		/* T53: slower than 32 units a pause */
		{ 25600, 100, 200, 100, 200, 19 }, { 25600, 100, 200, 10, 200, 1 },
		{ 25600, 3200, 200, 0, 200, 0 },
		{ 25600, 1, 200, 1, 200, 0 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct pause_targets t = pause_targets(rows[i].bw, rows[i].rl, rows[i].max, rows[i].task_rate);
		row_eq(i, t.min_ms, rows[i].min);
		row_eq(i, t.next_units, rows[i].next);
		row_eq(i, t.max_ms, rows[i].max);
	}
}
END_TEST

START_TEST(debt_becomes_a_pause_or_is_carried_on)
{
	static const struct {
		uint64_t pages, rate, now, paused_when, poll;   /* owed, allowed, and the task before */
		bool async;
		enum throttle_verdict verdict;
		uint64_t pause, new_paused_when, new_poll, new_dirtied;
	} rows[] = {
		/* T55: too short, credit carried */
		{ 181, 6400, 10000, 9980, 32, false, THROTTLE_RETURN, 0, 10008, 32, 0 },
		/* T56: long thought */
		{ 181, 6400, 12000, 9980, 32, false, THROTTLE_RETURN, 0, 12000, 32, 0 },
		/* thought not that long: still credit */
		{ 181, 6400, 11000, 9980, 32, false, THROTTLE_RETURN, 0, 10008, 32, 0 },
		/* just long enough */
		{ 181, 6400, 10000, 9987, 32, false, THROTTLE_SLEEP, 15, 10015, 45, 0 },
		/* T57: one more pause carried */
		{ 181, 100, 10000, 10000, 32, false, THROTTLE_SLEEP, 200, 10400, 45, 0 },
		/* T58: looks too often */
		{ 1, 25600, 10000, 10000, 1, false, THROTTLE_RETURN, 0, 10000, 2, 1 },
		/* T59: may not sleep */
		{ 181, 100, 10000, 10000, 32, true, THROTTLE_AGAIN, 0, 10000, 32, 181 },
		/* and need not */
		{ 181, 6400, 10000, 9980, 32, true, THROTTLE_RETURN, 0, 10008, 32, 0 },
		/* worth a sleep */
		{ 181, 6400, 10000, 10000, 32, false, THROTTLE_SLEEP, 28, 10028, 45, 0 },
		/* first pause ever */
		{ 181, 6400, 10000, 0, 32, false, THROTTLE_SLEEP, 28, 10028, 45, 0 },
		/* still owes from before */
		{ 181, 6400, 10000, 10020, 32, false, THROTTLE_SLEEP, 48, 10048, 45, 0 },
		/* 50 ms more than the longest */
		{ 1600, 6400, 10000, 10000, 32, false, THROTTLE_SLEEP, 200, 10250, 45, 0 },
		/* over the hard limit */
		{ 181, 0, 10000, 9000, 32, false, THROTTLE_SLEEP, 200, 10200, 45, 0 },
		/* over it, and may not sleep */
		{ 181, 0, 10000, 9000, 32, true, THROTTLE_AGAIN, 0, 9000, 32, 181 },
		/* there, owing nothing does not help */
		{ 0, 0, 10000, 10000, 32, false, THROTTLE_SLEEP, 200, 10200, 45, 0 },
		/* below, it does */
		{ 0, 6400, 10000, 10000, 32, false, THROTTLE_RETURN, 0, 10000, 32, 0 },
	};
	const struct pause_targets targets = { .max_ms = 200, .min_ms = 15, .next_units = 45 };

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct throttle_task t = { rows[i].pages, rows[i].poll, rows[i].paused_when };
		uint64_t pause = 0;

		row_eq(i, throttle_decide(&t, rows[i].pages, rows[i].rate, &targets, rows[i].async, rows[i].now,
					  &pause), rows[i].verdict);
		row_eq(i, pause, rows[i].pause);
		row_eq(i, t.paused_when_ms, rows[i].new_paused_when);
		row_eq(i, t.nr_dirtied_pause, rows[i].new_poll);
		row_eq(i, t.nr_dirtied, rows[i].new_dirtied);
	}
}
END_TEST

/*
 * What a writer that owes @owed units at that level sleeps, were any sleep worth its while: shorter ones are owed on. @rate: of the
 * device, and of each writer at the set point.
 */
static uint64_t pause_at(struct dirty_limits l, uint64_t dirty, uint64_t owed, uint64_t rate)
{
	struct wb_rate r = { .write_bw = rate, .avg_bw = rate, .dirty_ratelimit = rate, .balanced_ratelimit = rate };
	struct pos_input in = {
		.limits = l, .hard = dirty_hard_limit(l, l.thresh), .dirty = dirty, .wb_thresh = l.thresh, .wb_dirty = dirty,
		.avg_bw = rate,
	};
	struct throttle_task t;
	struct pause_targets targets;
	uint64_t task_rate, pause;

	if (dirty <= dirty_freerun(l))
		return 0;
	throttle_task_init(&t);
	t.nr_dirtied = owed;
	task_rate = wb_task_rate(&r, pos_ratio(&in));
	targets = pause_targets(rate, rate, pause_max(rate, dirty), task_rate);
	targets.min_ms = 0;
	return throttle_decide(&t, owed, task_rate, &targets, false, 10000, &pause) == THROTTLE_SLEEP ? pause : 0;
}

/* C35, its part (d); background 8 MiB, hard limit 16 MiB */
START_TEST(a_pause_never_shrinks_as_more_is_dirty)
{
	static const uint64_t rates[] = { 25600, 2560, 256, 100 }, debts[] = { 1, 8, 32, 128, 512, 4096 };
	struct dirty_limits l = dirty_limits_from_bytes(16 << 20, 8 << 20);

	ck_assert_uint_eq(l.thresh, 4096);
	for (size_t r = 0; r < ARRAY_SIZE(rates); r++) {
		for (size_t d = 0; d < ARRAY_SIZE(debts); d++) {
			uint64_t before = 0;

			for (uint64_t dirty = 3072; dirty <= 4096; dirty++) {
				uint64_t pause = pause_at(l, dirty, debts[d], rates[r]);

				ck_assert_msg(pause >= before, "owing %" PRIu64 " at %" PRIu64 " a second: %" PRIu64 " ms at %" PRIu64
					      " units, %" PRIu64 " at one less", debts[d], rates[r], pause, dirty, before);
				ck_assert_uint_le(pause, THROTTLE_PAUSE_MAX_MS);
				before = pause;
				if (dirty == 3072)
					ck_assert_uint_eq(pause, 0);
			}
			ck_assert_uint_gt(before, 0);
		}
	}
}
END_TEST

START_TEST(writers_over_their_device_limit_look_often)
{
	struct throttle_task t;

	throttle_task_init(&t);
	ck_assert_uint_eq(throttle_entry_limit(&t, false), 32);
	t = (struct throttle_task){ .nr_dirtied = 5, .nr_dirtied_pause = 100 };         /* T63: 5 owed, not yet */
	ck_assert_uint_eq(throttle_entry_limit(&t, true), 8);
	ck_assert_uint_eq(throttle_entry_limit(&t, false), 100);
	t.nr_dirtied_pause = 3;
	ck_assert_uint_eq(throttle_entry_limit(&t, true), 3);
	t.nr_dirtied = 50;
	throttle_free_run(&t, 256, 7000);
	ck_assert_uint_eq(t.nr_dirtied, 0);
	ck_assert_uint_eq(t.nr_dirtied_pause, 256);
	ck_assert_uint_eq(t.paused_when_ms, 7000);
}
END_TEST

START_TEST(chunk_is_half_a_second_of_device_time)
{
	static const struct { uint64_t bw, limit, left, want; } t66[] = {
		{ 25600, 199951, UINT64_MAX, 13312 }, { 2000, 199951, UINT64_MAX, 1024 },
		{ 102400, 199951, UINT64_MAX, 25600 },
		{ 25600, 199951, 5000, 5120 }, { 25600, 4096, UINT64_MAX, 1024 },
		{ 1000000, 199951, UINT64_MAX, 25600 },
		{ 1, 0, 0, 1024 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(t66); i++) {
		row_eq(i, writeback_chunk(t66[i].bw, t66[i].limit, t66[i].left, WRITEBACK_CHUNK_MIN),
		       t66[i].want);
	}
	/* a zone need not be a power of two */
	ck_assert_uint_eq(writeback_chunk(25600, 199951, UINT64_MAX, 3000), 15000);
}
END_TEST

/* --- The closed loop ------------------------------------------------------------------------- */

#define SIM_WRITERS_MAX 64
#define SIM_QUEUE       2048U           /* units the device takes at a time */
#define SIM_DIRTY_TICK  500U            /* units an unthrottled writer dirties in a tick */

struct sim {
	struct dirty_limits limits;
	uint64_t now, dirty, inflight, written, dirtied, tracked;
	uint64_t device_rate, device_part;      /* units/s, and thousandths of a unit not yet done */
	struct wb_rate rate;
	struct fprop_domain shares;
	struct fprop_local share;
	bool flushing;
	unsigned nr_writers;
	struct sim_writer {
		struct throttle_task task;
		uint64_t wake_ms, total;
		bool over;              /* slept over the hard limit: look again first */
	} writers[SIM_WRITERS_MAX];
	/* what happened since sim_measure() */
	uint64_t ticks, sum_dirty, sum_ratelimit, max_dirty, pauses, sum_pause, max_pause;
};

static void sim_init(struct sim *s, unsigned nr_writers, uint64_t device_rate)
{
	*s = (struct sim){ .limits = std, .now = 1, .nr_writers = nr_writers, .device_rate = device_rate };
	wb_rate_init(&s->rate, 0, 0, s->now);
	fprop_domain_init(&s->shares);
	fprop_local_init(&s->share, &s->shares);
	for (unsigned i = 0; i < nr_writers; i++)
		throttle_task_init(&s->writers[i].task);
}

static void sim_device(struct sim *s)
{
	s->device_part += s->device_rate;
	uint64_t done = min_u64(s->device_part / THROTTLE_HZ, s->inflight);

	s->device_part = s->inflight > done ? s->device_part % THROTTLE_HZ : 0;
	s->inflight -= done;
	s->written += done;
	fprop_timer(&s->shares, s->now);
	fprop_add(&s->shares, &s->share, done, s->now);
	s->flushing = s->dirty > s->limits.bg;
	if (s->flushing) {
		uint64_t start = min_u64(s->dirty - s->limits.bg, SIM_QUEUE - s->inflight);
		s->dirty -= start;
		s->inflight += start;
	}
}

/* The writer looks at the limits; false: it sleeps now. */
static bool sim_balance(struct sim *s, struct sim_writer *w)
{
	const uint64_t level = s->dirty + s->inflight;

	w->over = false;
	if (level <= dirty_freerun(s->limits)) {
		throttle_free_run(&w->task, poll_interval(level, s->limits.thresh), s->now);
		return true;
	}
	struct pos_input in = {
		.limits = s->limits, .hard = dirty_hard_limit(s->limits, s->tracked), .dirty = level,
		.wb_thresh = wb_share(s->limits.thresh, fprop_fraction(&s->shares, &s->share)),
		.wb_dirty = level, .avg_bw = s->rate.avg_bw,
	};
	uint64_t pos = pos_ratio(&in);

	if (wb_rate_is_due(&s->rate, s->now)) {
		s->tracked = dirty_limit_step(s->tracked, s->limits.thresh, level);
		wb_rate_update_ratelimit(&s->rate, pos, s->dirtied, level, dirty_setpoint(s->limits, in.hard),
					 s->now);
		wb_rate_update_bandwidth(&s->rate, s->written, s->dirtied, s->now);
	}
	uint64_t task_rate = wb_task_rate(&s->rate, pos), pause;
	struct pause_targets targets = pause_targets(s->rate.avg_bw, s->rate.dirty_ratelimit,
						     pause_max(s->rate.avg_bw, level), task_rate);

	if (throttle_decide(&w->task, w->task.nr_dirtied, task_rate, &targets, false, s->now, &pause) !=
	    THROTTLE_SLEEP)
		return true;
	w->wake_ms = s->now + pause;
	w->over = task_rate == 0;
	s->pauses++;
	s->sum_pause += pause;
	s->max_pause = max_u64(s->max_pause, pause);
	return false;
}

static void sim_write(struct sim *s, struct sim_writer *w)
{
	if (w->wake_ms > s->now || (w->over && !sim_balance(s, w)))
		return;
	for (uint64_t left = SIM_DIRTY_TICK; left;) {
		uint64_t limit = throttle_entry_limit(&w->task, false);

		if (w->task.nr_dirtied >= limit && !sim_balance(s, w))
			return;
		limit = max_u64(throttle_entry_limit(&w->task, false), w->task.nr_dirtied + 1);
		uint64_t n = min_u64(left, limit - w->task.nr_dirtied);
		left -= n;
		w->task.nr_dirtied += n;
		w->total += n;
		s->dirty += n;
		s->dirtied += n;
	}
}

static void sim_run(struct sim *s, uint64_t ms)
{
	for (; ms; ms--, s->now++) {
		sim_device(s);
		for (unsigned i = 0; i < s->nr_writers; i++)
			sim_write(s, &s->writers[i]);
		s->ticks++;
		s->sum_dirty += s->dirty + s->inflight;
		s->sum_ratelimit += s->rate.dirty_ratelimit;
		s->max_dirty = max_u64(s->max_dirty, s->dirty + s->inflight);
	}
}

static void sim_measure(struct sim *s)
{
	s->ticks = s->sum_dirty = s->sum_ratelimit = s->max_dirty = s->pauses = s->sum_pause = s->max_pause = 0;
	for (unsigned i = 0; i < s->nr_writers; i++)
		s->writers[i].total = 0;
}

/* Within a tenth. */
static void expect_about(const char *what, uint64_t got, uint64_t want)
{
	ck_assert_msg(got >= want - want / 10 && got <= want + want / 10, "%s is %" PRIu64 ", not about %" PRIu64,
		      what, got, want);
}

START_TEST(writers_settle_at_the_device_speed_near_the_set_point)
{
	static const struct { unsigned writers; uint64_t dirty, ratelimit, mean_pause; } rows[] = {
		{ 1, 178600, 25600, 0 },        /* B1 */
		{ 4, 182600, 6700, 30 },        /* B2 */
		{ 16, 183000, 1710, 55 },       /* B3 */
		{ 64, 183600, 432, 87 },
	};
	static struct sim s;
	const unsigned row = (unsigned)_i, writers = rows[row].writers;

	sim_init(&s, writers, 25600);
	sim_run(&s, 60000);
	sim_measure(&s);
	sim_run(&s, 60000);

	expect_about("mean dirty", s.sum_dirty / s.ticks, rows[row].dirty);
	expect_about("ratelimit", s.sum_ratelimit / s.ticks, rows[row].ratelimit);
	if (rows[row].mean_pause)
		expect_about("mean pause", s.sum_pause / s.pauses, rows[row].mean_pause);
	else
		expect_about("longest pause", s.max_pause, 11);
	ck_assert_uint_le(s.max_pause, THROTTLE_PAUSE_MAX_MS);
	ck_assert_uint_le(s.max_dirty, s.limits.thresh + s.limits.thresh / 1000);

	uint64_t least = UINT64_MAX, most = 0;
	for (unsigned i = 0; i < writers; i++) {
		least = min_u64(least, s.writers[i].total);
		most = max_u64(most, s.writers[i].total);
	}
	expect_about("throughput", least, 60 * 25600 / writers);
	ck_assert_msg(most - least <= most / 100, "throughput of writers differs: %" PRIu64 " to %" PRIu64,
		      least, most);
}
END_TEST

Suite *suite_throttle_math(void)
{
	Suite *s = suite_create("throttle-math");
	TCase *tc = tcase_create("limits");

	tcase_add_test(tc, limits_round_up_and_order_themselves);
	tcase_add_test(tc, tracked_limit_rises_at_once_and_falls_slowly);
	tcase_add_test(tc, free_runner_looks_again_after_the_root_of_the_room);
	suite_add_tcase(s, tc);

	tc = tcase_create("shares");
	tcase_add_test(tc, share_is_own_completions_of_all_halved_every_period);
	tcase_add_test(tc, late_timer_catches_up_and_idle_timer_stops);
	tcase_add_test(tc, share_of_a_limit_is_its_fraction);
	suite_add_tcase(s, tc);

	tc = tcase_create("position");
	tcase_add_test(tc, position_is_two_at_free_run_one_at_set_point_zero_at_limit);
	tcase_add_test(tc, position_alone_would_hold_n_writers_just_below_the_limit);
	tcase_add_test(tc, position_bends_by_the_devices_own_share);
	tcase_add_test(tc, position_survives_room_larger_than_the_limit);
	tcase_add_test(tc, rates_of_a_device_gone_idle_do_not_wrap);
	suite_add_tcase(s, tc);

	tc = tcase_create("rates");
	tcase_add_test(tc, bandwidth_is_measured_and_averaged);
	tcase_add_test(tc, bandwidth_converges_from_either_side);
	tcase_add_test(tc, ratelimit_moves_only_where_level_and_rates_agree);
	tcase_add_test(tc, totals_or_clock_going_back_count_as_nothing);
	tcase_add_test(tc, silence_restarts_the_estimate_without_changing_it);
	suite_add_tcase(s, tc);

	tc = tcase_create("pauses");
	tcase_add_test(tc, longest_pause_never_lets_the_device_run_dry);
	tcase_add_test(tc, pause_grows_with_writers_and_is_worth_its_look);
	tcase_add_test(tc, debt_becomes_a_pause_or_is_carried_on);
	tcase_add_test(tc, a_pause_never_shrinks_as_more_is_dirty);
	tcase_add_test(tc, writers_over_their_device_limit_look_often);
	tcase_add_test(tc, chunk_is_half_a_second_of_device_time);
	suite_add_tcase(s, tc);

	tc = tcase_create("closed loop");
	tcase_add_loop_test(tc, writers_settle_at_the_device_speed_near_the_set_point, 0, 4);
	suite_add_tcase(s, tc);
	return s;
}
