/*
 * cases-errors.c - bugs that others reported, as short sequences with the exact right result: errors, and what fsync says of them
 *
 * Where a case depends on the rule for failed writes, it runs under both: K, IOMAP_ERROR_KEEP_DIRTY, and L, IOMAP_ERROR_DROP.
 */
#define _GNU_SOURCE
#include "cases.h"

static void fsync_all(struct iomap_file **handles, int wanted, const char *phase)
{
	for (unsigned i = 0; i < 10; i++) {
		int ret = iomap_fsync(handles[i]);

		CHECK_MSG(ret == wanted, "%s: fsync of handle %u: %d, expected %d", phase, i, ret, wanted);
	}
}

/* C40 */
static void every_handle_sees_a_write_error(void)
{
	BOTH_RULES(policy) {
		struct iomap_file *handles[10];
		unsigned char *buf = malloc(66560);
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		memset(buf, 'A', 66560);
		for (unsigned i = 0; i < 10; i++) {
			handles[i] = t_rig_handle(&rig, O_RDWR);
			CHECK_EQ(iomap_pwrite(handles[i], buf, 66560, i * 66560), 66560);
		}
		fsync_all(handles, 0, "F1");
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
		memset(buf, 'B', 66560);
		for (unsigned i = 0; i < 10; i++)
			CHECK_EQ(iomap_pwrite(handles[i], buf, 66560, i * 66560), 66560);
		fsync_all(handles, -EIO, "F2");
		fsync_all(handles, policy == IOMAP_ERROR_KEEP_DIRTY ? -EIO : 0, "F3");
		t_hold_heal(rig.hold);
		fsync_all(handles, 0, "F4");
		if (policy == IOMAP_ERROR_KEEP_DIRTY)
			t_rig_expect_stored(&rig, 0, 665600, 'B');
		for (unsigned i = 0; i < 10; i++) {
			CHECK_EQ(iomap_close(handles[i]), 0);
			handles[i] = t_rig_handle(&rig, O_RDWR);
			CHECK_EQ(iomap_fsync(handles[i]), 0);
		}
		for (unsigned i = 0; i < 10; i++)
			CHECK_EQ(iomap_close(handles[i]), 0);
		CHECK_EQ(iomap_fsync(rig.file), policy == IOMAP_ERROR_KEEP_DIRTY ? 0 : -EIO);  /* it has not asked yet */
		CHECK_EQ(iomap_fsync(rig.file), 0);
		free(buf);
		t_rig_down(&rig);
	}
}

static bool a_write_failed(struct t_rig *rig)
{
	struct iomap_cache_stat st = t_rig_stat(rig);

	return st.write_failed_bytes > 0 && st.writeback_bytes == 0;
}

/* C41 */
static void an_error_before_the_open_is_reported_once_it_is_asked_for(void)
{
	BOTH_RULES(policy) {
		bool keep = policy == IOMAP_ERROR_KEEP_DIRTY;
		struct iomap_file *h2, *h3;
		struct t_rig rig;
		int e4;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 4096, 'A');
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
		start_writeback(&rig);
		CHECK(T_WAIT(a_write_failed(&rig), 5000));
		h2 = t_rig_handle(&rig, O_RDWR);
		CHECK_EQ(iomap_fsync(h2), -EIO);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(h2), 0);
		if (keep)
			t_rig_expect_stored(&rig, 0, 4096, 'A');
		h3 = t_rig_handle(&rig, O_RDWR);
		CHECK_EQ(iomap_fsync(h3), 0);
		e4 = iomap_fsync(rig.file);
		CHECK_MSG(e4 == -EIO || (keep && e4 == 0), "fsync of the first handle: %d", e4);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(iomap_close(h2), 0);
		CHECK_EQ(iomap_close(h3), 0);
		t_rig_down(&rig);
	}
}

/* C42 */
static void only_fsync_takes_the_error_away(void)
{
	BOTH_RULES(policy) {
		unsigned char buf[4096];
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 8192, 'A');
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 4096, EIO);
		CHECK_EQ(iomap_sync_range(rig.file, 0, 0, IOMAP_SYNC_WRITE), 0);    /* not DONTNEED: under rule L that might take the folio */
		CHECK(T_WAIT(a_write_failed(&rig), 5000));
		CHECK_EQ(fstat_size(rig.file), 8192);
		CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_END), 8192);
		CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), 0);
		CHECK_EQ(iomap_pread(rig.file, buf, 4096, 4096), 4096);
		CHECK_EQ(iomap_ftruncate(rig.file, 16384), 0);
		CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_WILLNEED), 0);
		CHECK_EQ(iomap_fsync(rig.file), -EIO);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_hold_size(rig.hold), 16384);
		if (policy == IOMAP_ERROR_KEEP_DIRTY)
			t_rig_expect_stored(&rig, 0, 8192, 'A');
		t_rig_down(&rig);
	}
}

/* C43 */
static void fsync_again_after_eio_tells_the_truth(void)
{
	BOTH_RULES(policy) {
		bool keep = policy == IOMAP_ERROR_KEEP_DIRTY;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 4096, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 4096, EIO);
		t_rig_write(&rig, 0, 4096, 'N');
		CHECK_EQ(iomap_fsync(rig.file), -EIO);
		t_rig_expect(&rig, 0, 4096, 'N');
		CHECK_EQ(iomap_fsync(rig.file), keep ? -EIO : 0);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, keep ? 4096 : 0);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_expect_stored(&rig, 0, 4096, keep ? 'N' : 'A');
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
		CHECK_GE(t_rig_io(&rig).io_errors, 1);
		t_rig_write(&rig, 0, 4096, 'N');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_crash(&rig, 3);
		t_rig_expect(&rig, 0, 4096, 'N');
		t_rig_down(&rig);
	}
}

/* C44 */
static void sync_of_the_cache_reports_errors_of_any_file(void)
{
	BOTH_RULES(policy) {
		bool keep = policy == IOMAP_ERROR_KEEP_DIRTY;
		struct iomap_file_params second = IOMAP_FILE_PARAMS_INIT;
		const struct t_hold_params second_device = { .volatile_cache = true };
		struct t_hold *hold2 = t_hold_create(&second_device);
		struct iomap_file *f2;
		unsigned char buf[4096];
		struct t_rig rig;
		int e3;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		second.device = t_hold_device(hold2);
		CHECK_EQ(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &second, &f2), 0);
		t_rig_write(&rig, 0, 4096, 'A');
		memset(buf, 'B', sizeof(buf));
		CHECK_EQ(iomap_pwrite(f2, buf, 4096, 0), 4096);
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
		start_writeback(&rig);
		CHECK(T_WAIT(t_rig_stat(&rig).write_failed_bytes > 0, 5000));
		CHECK_EQ(iomap_cache_sync(rig.cache), -EIO);
		t_hold_peek_durable(hold2, buf, 4096, 0);
		CHECK_BYTES(buf, 4096, 'B');
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_cache_sync(rig.cache), 0);
		if (keep) {
			t_hold_peek_durable(rig.hold, buf, 4096, 0);
			CHECK_BYTES(buf, 4096, 'A');
		}
		e3 = iomap_fsync(rig.file);
		CHECK_MSG(e3 == -EIO || (keep && e3 == 0), "fsync of the file that failed: %d", e3);
		CHECK_EQ(iomap_fsync(f2), 0);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(iomap_close(f2), 0);
		CHECK_EQ(iomap_device_close(second.device), 0);
		t_rig_down(&rig);
		t_hold_free(hold2);
	}
}

/* C45: requests of at most 64 KiB, so that the good half is one of its own */
static void failed_writeback_keeps_the_bytes_and_writes_the_rest(void)
{
	BOTH_RULES(policy) {
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		rig.device_params.max_bytes = 65536;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 131072, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_write(&rig, 0, 131072, 'N');
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 65536, EIO);
		CHECK_EQ(iomap_fsync(rig.file), -EIO);
		t_rig_reset(&rig);
		t_rig_expect(&rig, 0, 131072, 'N');
		CHECK_EQ(t_rig_io(&rig).read_bytes, 0);
		t_rig_expect_stored(&rig, 65536, 65536, 'N');
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, policy == IOMAP_ERROR_KEEP_DIRTY ? 65536 : 0);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		if (policy == IOMAP_ERROR_KEEP_DIRTY)
			t_rig_expect_stored(&rig, 0, 131072, 'N');
		t_rig_down(&rig);
	}
}

/* C46 */
static void a_write_behind_the_end_that_fails_keeps_good_data(void)
{
	for (enum iomap_accounting mode = IOMAP_ACCT_BLOCK; mode <= IOMAP_ACCT_FOLIO; mode++) {
		unsigned char buf[4096];
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.max_folio_bytes = 4096;
		rig.params.accounting = mode;
		rig.block_size = 1024;
		t_rig_up(&rig);
		t_hold_set_space(rig.hold, 1024);
		t_rig_write(&rig, 0, 1024, 'A');
		memset(buf, 'N', sizeof(buf));
		CHECK_EQ(iomap_pwrite(rig.file, buf, 2048, 1024), -ENOSPC);
		CHECK_EQ(fstat_size(rig.file), 1024);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, mode == IOMAP_ACCT_BLOCK ? 1024 : 4096);
		t_hold_set_space(rig.hold, UINT64_MAX);
		fsync_and_drop(&rig);
		CHECK_EQ(iomap_pread(rig.file, buf, 4096, 0), 1024);
		CHECK_BYTES(buf, 1024, 'A');
		t_rig_down(&rig);
	}
}

/* C47 */
static void a_full_device_is_enospc_never_zero(void)
{
	unsigned char buf[4096];
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_hold_set_space(rig.hold, 0);
	memset(buf, 'A', sizeof(buf));
	CHECK_EQ(iomap_pwrite(rig.file, buf, 4096, 0), -ENOSPC);
	CHECK_EQ(iomap_pwrite(rig.file, buf, 4096, 0), -ENOSPC);
	CHECK_EQ(iomap_pwrite(rig.file, buf, 0, 0), 0);
	CHECK_EQ(fstat_size(rig.file), 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	t_rig_down(&rig);
}

static const struct t_run_case cases[] = {
	T_RUN(every_handle_sees_a_write_error),
	T_RUN(an_error_before_the_open_is_reported_once_it_is_asked_for),
	T_RUN(only_fsync_takes_the_error_away),
	T_RUN(fsync_again_after_eio_tells_the_truth),
	T_RUN(sync_of_the_cache_reports_errors_of_any_file),
	T_RUN(failed_writeback_keeps_the_bytes_and_writes_the_rest),
	T_RUN(a_write_behind_the_end_that_fails_keeps_good_data),
	T_RUN(a_full_device_is_enospc_never_zero),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
