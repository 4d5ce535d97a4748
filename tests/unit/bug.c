/*
 * bug.c - a warning counts, keeps its place and yields its condition
 */
#include <check.h>
#include <string.h>
#include "bug.h"

Suite *suite_bug(void);

START_TEST(a_warning_yields_its_condition_and_counts_when_true)
{
	uint64_t before = bug_warn_count();
	int evaluated = 0;

	ck_assert(!IOMAP_WARN_ON(evaluated++ == 1));
	ck_assert_uint_eq(bug_warn_count(), before);
	ck_assert(IOMAP_WARN_ON(evaluated++ == 1));
	ck_assert_uint_eq(bug_warn_count(), before + 1);
	ck_assert_int_eq(evaluated, 2);
}
END_TEST

START_TEST(the_first_warnings_are_kept_and_later_ones_only_counted)
{
	struct bug_warning w;
	uint64_t first = bug_warn_count();

	for (unsigned i = 0; i < BUG_WARN_KEPT + 3; i++)
		IOMAP_WARN_ON(i < 100);
	ck_assert_uint_eq(bug_warn_count(), first + BUG_WARN_KEPT + 3);
	for (uint64_t n = first; n < BUG_WARN_KEPT; n++) {
		ck_assert(bug_warn_get(n, &w));
		ck_assert_str_eq(w.what, "i < 100");
		ck_assert_ptr_nonnull(strstr(w.file, "bug.c"));
		ck_assert_int_gt(w.line, 0);
	}
	ck_assert(!bug_warn_get(BUG_WARN_KEPT, &w));
	ck_assert(!bug_warn_get(UINT64_MAX, &w));
}
END_TEST

Suite *suite_bug(void)
{
	Suite *s = suite_create("bug");
	TCase *tc = tcase_create("bug");

	suite_add_tcase(s, tc);
	tcase_add_test(tc, a_warning_yields_its_condition_and_counts_when_true);
	tcase_add_test(tc, the_first_warnings_are_kept_and_later_ones_only_counted);
	return s;
}
