/*
 * report.h - what people and machines read: how it goes, where it ran, a table, JSON, a picture
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdbool.h>
#include <stdio.h>
#include <jansson.h>

/*
 * A line on stderr that says what is going on: rewritten in place on a terminal, a line of its own each time elsewhere.
 * Whoever prints anything else there clears it first.
 */
bool status_is_live(void);
void status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void status_clear(void);

/* The commit this program was built from: BENCH_COMMIT of the build, or "unknown". */
const char *report_commit(void);

/* Two lines: program, commit, CPU, kernel; and @where, for example the directory and its file system. */
void report_machine(FILE *out, const char *workload, const char *where);

/* "iomap-bench overcharge --seconds 60": the command that repeats what was measured. */
void report_repeat(FILE *out, int argc, char **argv);

/* One object on one line of stdout, keys in the order they were set; drops the reference. */
void report_json(json_t *object);

/* A number for JSON, rounded to @digits after the point so that it can be read. */
json_t *report_real(double value, int digits);

/*
 * A table: headings (a newline in one starts its next line), then cells row by row. The first column is aligned
 * to the left, the others to the right; columns are as wide as they need.
 */
struct table;

struct table *table_create(const char *const *heads, unsigned nr_columns);
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_print(const struct table *t, FILE *out);
void table_destroy(struct table *t);

/*
 * A picture: panels above each other over the same x axis, with the same pens in each. Pens draw in their
 * order: give the later ones less width, so that equal lines can be told apart.
 */
struct plot_pen {
	const char *label, *colour;             /* "#rrggbb" */
	double width;
};

struct plot_line {
	const double *x, *y;
	unsigned nr;
};

/* A dashed line across a panel. */
struct plot_mark {
	double y;
	const char *label;
};

struct plot_panel {
	const char *title, *y_label;
	const struct plot_line *lines;          /* one for each pen */
	const struct plot_mark *marks;
	unsigned nr_marks;
};

struct plot {
	const char *title, *subtitle, *x_label;
	double x_max;
	const struct plot_pen *pens;
	unsigned nr_pens;
	const struct plot_panel *panels;
	unsigned nr_panels;
};

/* Draws @plot with gnuplot into report/@name beside the program, and says on @out where it is or why it is not. */
void plot_draw(const struct plot *plot, const char *name, FILE *out);

#endif
