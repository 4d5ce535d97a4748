/*
 * bug.h - checks on ourselves
 *
 * IOMAP_BUG_ON() is for what can only be our own mistake: in debug, sanitizer and simulation builds it prints and
 * aborts, in release it only type-checks. IOMAP_WARN_ON() stays in release: it counts and yields its condition, so that
 * the caller can back out.
 */
#ifndef IOMAP_BUG_H
#define IOMAP_BUG_H

#include <stdbool.h>
#include <stdint.h>

#ifdef IOMAP_DEBUG
_Noreturn void bug_report(const char *file, int line, const char *what);
#define IOMAP_BUG_ON(cond) \
	do { \
		if (__builtin_expect(!!(cond), 0)) \
			bug_report(__FILE__, __LINE__, #cond); \
	} while (0)
#else
#define IOMAP_BUG_ON(cond) ((void)sizeof(!!(cond)))
#endif

/*
 * Counts, keeps the first few for the log, returns @cond. Takes no lock and calls nobody, so it may stand
 * anywhere.
 */
bool bug_warn(bool cond, const char *file, int line, const char *what);
#define IOMAP_WARN_ON(cond) \
	({ \
		bool warn_ = !!(cond); \
		if (__builtin_expect(warn_, 0)) \
			bug_warn(true, __FILE__, __LINE__, #cond); \
		warn_; \
	})

/* How often IOMAP_WARN_ON() fired in this process; tests expect no change. */
uint64_t bug_warn_count(void);

#define BUG_WARN_KEPT 8
struct bug_warning { const char *file; int line; const char *what; };
/*
 * The @n-th warning of this process, from 0; false if there is none yet or it was not kept. For whoever calls the
 * log hook.
 */
bool bug_warn_get(uint64_t n, struct bug_warning *out);

#endif
