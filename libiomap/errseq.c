/*
 * errseq.c - an error that every observer sees once
 *
 * Kernel: lib/errseq.c.
 */
#include "errseq.h"

#define ERRNO_MASK 0xfffU
#define SEEN       0x1000U
#define COUNT_ONE  0x2000U

void errseq_set(errseq_t *seq, int error)
{
	uint32_t old = load_relaxed(seq), new;

	if (!error)
		return;
	do {
		new = (old & ~(ERRNO_MASK | SEEN)) | ((uint32_t)-error & ERRNO_MASK);
		if (old & SEEN)
			new += COUNT_ONE;
		if (new == old)
			return;
	} while (!cmpxchg_relaxed(seq, &old, new));
}

uint32_t errseq_sample(errseq_t *seq)
{
	uint32_t now = load_relaxed(seq);

	return now & SEEN ? now : 0;
}

int errseq_check(errseq_t *seq, uint32_t since)
{
	uint32_t now = load_relaxed(seq);

	return now == since || !(now & ERRNO_MASK) ? 0 : -(int)(now & ERRNO_MASK);
}

int errseq_check_and_advance(errseq_t *seq, uint32_t *since)
{
	uint32_t old = load_relaxed(seq);

	if (old == *since || !(old & ERRNO_MASK))
		return 0;
	while (!(old & SEEN) && !cmpxchg_relaxed(seq, &old, old | SEEN))
		;
	*since = old | SEEN;
	return -(int)(old & ERRNO_MASK);
}
