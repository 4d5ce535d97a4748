/*
 * unit-main.c - runs the Check suites of tests/unit/
 *
 * suites.inc is generated from the list of files: tests/unit/NAME.c defines suite_NAME(), dashes as underscores.
 * CK_RUN_SUITE=NAME picks one, by the name of its file. Ends with "N passed, N failed".
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include "test.h"

#define SUITE(name) Suite *suite_##name(void);
#include "suites.inc"
#undef SUITE

static const struct {
	const char *name;
	Suite *(*suite)(void);
} suites[] = {
#define SUITE(name) { #name, suite_##name },
#include "suites.inc"
#undef SUITE
};

/* NAME as a file's or as a suite's: dashes and underscores are the same. */
static int same_name(const char *a, const char *b)
{
	for (; *a && *b; a++, b++)
		if (*a != *b && !((*a == '-' || *a == '_') && (*b == '-' || *b == '_')))
			return 0;
	return *a == *b;
}

int main(void)
{
	const char *only = getenv("CK_RUN_SUITE");
	SRunner *runner = srunner_create(NULL);
	int found = 0, run, failed, skipped;

	for (size_t i = 0; i < sizeof(suites) / sizeof(suites[0]); i++) {
		if (only && *only && !same_name(only, suites[i].name))
			continue;
		srunner_add_suite(runner, suites[i].suite());
		found++;
	}
	if (!found) {
		fprintf(stderr, "no suite %s\n", only ? only : "at all");
		srunner_free(runner);
		return EXIT_FAILURE;
	}
	t_skip_init();
	/* picked by file above; Check would compare with the name inside the suite */
	unsetenv("CK_RUN_SUITE");
	srunner_run_all(runner, CK_ENV);
	run = srunner_ntests_run(runner);
	failed = srunner_ntests_failed(runner);
	skipped = (int)t_skip_count();
	srunner_free(runner);
	printf("%d passed, %d failed, %d skipped\n", run - failed - skipped, failed, skipped);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
