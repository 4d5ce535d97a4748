/*
 * bug.c - what happens when a check on ourselves fails
 *
 * A debug build prints the place with the condition and aborts, so that the core shows the state that broke.
 * A release build counts, and keeps the first few places until somebody who holds no lock hands them to the
 * log hook.
 *
 * Invariants: a kept warning never changes once it can be read.
 * Locking:    none; a slot belongs to the thread whose count picked it and is published by its @what.
 * Kernel:     lib/bug.c, WARN_ON(). Differs: the count and the places are the only state, there is no taint.
 */
#include <stdio.h>
#include <stdlib.h>
#include "atomic.h"
#include "bug.h"
#ifdef IOMAP_SIM
#include "sim.h"
#endif

#ifdef IOMAP_DEBUG
_Noreturn void bug_report(const char *file, int line, const char *what)
{
#ifdef IOMAP_SIM
	sim_fail("BUG at %s:%d: %s", file, line, what);
#else
	fprintf(stderr, "libiomap: BUG at %s:%d: %s\n", file, line, what);
	fflush(stderr);
	abort();
#endif
}
#endif

/*
 * One for the process: a broken promise is one whichever cache it shows in, and the checks at the floor know no
 * cache.
 */
static struct {
	_Atomic uint64_t count;
	struct kept {
		const char *file;
		int line;
		const char *_Atomic what;       /* NULL until file and line are there */
	} kept[BUG_WARN_KEPT];
} warnings;

bool bug_warn(bool cond, const char *file, int line, const char *what)
{
	if (!cond)
		return false;
	uint64_t n = add_relaxed(&warnings.count, 1);   /* a counter; nothing is read because of it */
	if (n < BUG_WARN_KEPT) {
		struct kept *k = &warnings.kept[n];

		k->file = file;
		k->line = line;
		store_release(&k->what, what);          /* pairs with bug_warn_get(): who sees it sees file and line */
	}
#ifdef IOMAP_SIM
	sim_fail("WARNING at %s:%d: %s", file, line, what);
#elif defined(IOMAP_DEBUG)
	if (n < BUG_WARN_KEPT)
		fprintf(stderr, "libiomap: WARNING at %s:%d: %s\n", file, line, what);
#endif
	return true;
}

uint64_t bug_warn_count(void)
{
	return load_relaxed(&warnings.count);           /* a statistic */
}

bool bug_warn_get(uint64_t n, struct bug_warning *out)
{
	if (n >= BUG_WARN_KEPT)
		return false;
	struct kept *k = &warnings.kept[n];
	const char *what = load_acquire(&k->what);      /* pairs with bug_warn() */

	if (!what)
		return false;
	*out = (struct bug_warning){ .file = k->file, .line = k->line, .what = what };
	return true;
}
