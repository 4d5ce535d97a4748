/*
 * errseq.h - an error that every observer sees once
 *
 * Low 12 bits errno, bit 12 "seen", above it a counter that moves on only when the error before had been seen. An observer
 * keeps the value it last looked at; an error nobody has seen yet is also reported to observers that come later.
 */
#ifndef IOMAP_ERRSEQ_H
#define IOMAP_ERRSEQ_H

#include "atomic.h"

typedef _Atomic uint32_t errseq_t;

void errseq_set(errseq_t *seq, int error);                      /* -errno; 0 does nothing */
uint32_t errseq_sample(errseq_t *seq);                          /* for a new observer */
int  errseq_check(errseq_t *seq, uint32_t since);               /* 0 or -errno; marks nothing */
int  errseq_check_and_advance(errseq_t *seq, uint32_t *since);  /* 0 or -errno, once */

#endif
