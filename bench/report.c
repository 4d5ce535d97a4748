/*
 * report.c - what people and machines read: how it goes, where it ran, a table, JSON, a picture
 *
 * Nothing here measures. The picture is drawn by gnuplot, which gets the data and the drawing through a pipe,
 * so that there are no files to clean up; where there is no gnuplot the report says so and is otherwise
 * complete.
 */
#include "report.h"
#include "bench.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef BENCH_COMMIT
#define BENCH_COMMIT "unknown"
#endif

/* How it goes. Only the main thread calls these. */

static bool line_open;

bool status_is_live(void)
{
	return isatty(STDERR_FILENO);
}

void status_clear(void)
{
	if (line_open)
		fputs("\r\033[K", stderr);
	line_open = false;
}

void status(const char *fmt, ...)
{
	bool live = status_is_live();
	va_list args;

	status_clear();
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	if (!live)
		fputc('\n', stderr);
	fflush(stderr);
	line_open = live;
}

/* Where it ran. */

const char *report_commit(void)
{
	return *BENCH_COMMIT ? BENCH_COMMIT : "unknown";
}

static void find_cpu(char *out, size_t out_len)
{
	FILE *info = fopen("/proc/cpuinfo", "r");
	char line[256];

	snprintf(out, out_len, "unknown CPU");
	if (!info)
		return;
	while (fgets(line, sizeof line, info)) {
		char *value = strstr(line, ": ");

		if (!value || strncmp(line, "model name", strlen("model name")))
			continue;
		value[strcspn(value, "\n")] = 0;
		snprintf(out, out_len, "%s", value + 2);
		break;
	}
	fclose(info);
}

void report_machine(FILE *out, const char *workload, const char *where)
{
	struct utsname kernel;
	char cpu[256];

	find_cpu(cpu, sizeof cpu);
	if (uname(&kernel))
		strcpy(kernel.release, "unknown");
	fprintf(out, "iomap-bench %s, commit %s; %s, %ld CPUs; Linux %s\n", workload, report_commit(), cpu,
		sysconf(_SC_NPROCESSORS_ONLN), kernel.release);
	fprintf(out, "%s\n", where);
}

void report_repeat(FILE *out, int argc, char **argv)
{
	fputs("To repeat it: iomap-bench", out);
	for (int i = 0; i < argc; i++)
		fprintf(out, " %s", argv[i]);
	fputc('\n', out);
}

json_t *report_real(double value, int digits)
{
	double scale = pow(10, digits);

	return json_real(isfinite(value) ? round(value * scale) / scale : 0);
}

void report_json(json_t *object)
{
	json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
	putchar('\n');
	fflush(stdout);
	json_decref(object);
}

/* A table. */

struct table {
	const char *const *heads;
	unsigned nr_columns;
	unsigned nr_cells;
	char **cells;
};

static void *must(void *p)
{
	if (!p) {
		complain("out of memory");
		exit(1);
	}
	return p;
}

struct table *table_create(const char *const *heads, unsigned nr_columns)
{
	struct table *t = must(calloc(1, sizeof *t));

	t->heads = heads;
	t->nr_columns = nr_columns;
	return t;
}

void table_cell(struct table *t, const char *fmt, ...)
{
	va_list args;
	char text[128];

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	t->cells = must(realloc(t->cells, (t->nr_cells + 1) * sizeof *t->cells));
	t->cells[t->nr_cells++] = must(strdup(text));
}

/* The @n-th line of a heading, not terminated: its length is in @len, 0 where it has fewer. */
static const char *head_line(const char *head, unsigned n, size_t *len)
{
	while (n && *head) {
		head += strcspn(head, "\n");
		head += *head == '\n';
		n--;
	}
	*len = strcspn(head, "\n");
	return head;
}

static unsigned head_lines(const char *head)
{
	unsigned nr = 1;

	for (; *head; head++)
		nr += *head == '\n';
	return nr;
}

static void print_cell(FILE *out, const char *text, size_t len, unsigned column, size_t width)
{
	if (column)
		fprintf(out, "   %*.*s", (int)width, (int)len, text);
	else
		fprintf(out, "%-*.*s", (int)width, (int)len, text);
}

void table_print(const struct table *t, FILE *out)
{
	size_t *widths = must(calloc(t->nr_columns, sizeof *widths));
	size_t total = 0, len;
	unsigned depth = 1;

	for (unsigned c = 0; c < t->nr_columns; c++) {
		unsigned lines = head_lines(t->heads[c]);

		if (lines > depth)
			depth = lines;
		for (unsigned n = 0; n < lines; n++) {
			head_line(t->heads[c], n, &len);
			if (len > widths[c])
				widths[c] = len;
		}
	}
	for (unsigned i = 0; i < t->nr_cells; i++)
		if (strlen(t->cells[i]) > widths[i % t->nr_columns])
			widths[i % t->nr_columns] = strlen(t->cells[i]);

	for (unsigned n = 0; n < depth; n++) {
		for (unsigned c = 0; c < t->nr_columns; c++) {
			const char *line = head_line(t->heads[c], n, &len);

			print_cell(out, line, len, c, widths[c]);
		}
		fputc('\n', out);
	}
	for (unsigned c = 0; c < t->nr_columns; c++)
		total += widths[c] + (c ? 3 : 0);
	while (total--)
		fputc('-', out);
	fputc('\n', out);
	for (unsigned i = 0; i < t->nr_cells; i++) {
		unsigned c = i % t->nr_columns;

		print_cell(out, t->cells[i], strlen(t->cells[i]), c, widths[c]);
		if (c + 1 == t->nr_columns)
			fputc('\n', out);
	}
	free(widths);
}

void table_destroy(struct table *t)
{
	for (unsigned i = 0; i < t->nr_cells; i++)
		free(t->cells[i]);
	free(t->cells);
	free(t);
}

/* A picture. */

#define PLOT_WIDTH  1100
#define PLOT_HEIGHT 340         /* of one panel */
#define PLOT_MARGIN 75          /* above the panels: the title */

/* Where the program is, report/ beside it: with `make`, build/release/report. */
static int make_path(const char *name, char *path, size_t path_len)
{
	char program[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
	char *slash;

	if (len < 0)
		return -errno;
	program[len] = 0;
	slash = strrchr(program, '/');
	if (slash)
		*slash = 0;
	if (snprintf(path, path_len, "%s/report", program) >= (int)path_len)
		return -ENAMETOOLONG;
	if (mkdir(path, 0777) && errno != EEXIST)
		return -errno;
	if (snprintf(path, path_len, "%s/report/%s", program, name) >= (int)path_len)
		return -ENAMETOOLONG;
	return 0;
}

static void write_data(FILE *gp, const struct plot *plot)
{
	for (unsigned p = 0; p < plot->nr_panels; p++) {
		for (unsigned l = 0; l < plot->nr_pens; l++) {
			const struct plot_line *line = &plot->panels[p].lines[l];

			fprintf(gp, "$d%u_%u << EOD\n", p, l);
			for (unsigned i = 0; i < line->nr; i++)
				fprintf(gp, "%.3f %.6g\n", line->x[i], line->y[i]);
			fputs("EOD\n", gp);
		}
	}
}

/* Panel @p of the stack. Its own margins, so that the axes of all panels stand exactly above each other. */
static void write_panel(FILE *gp, const struct plot *plot, unsigned p)
{
	const struct plot_panel *panel = &plot->panels[p];
	double height = PLOT_MARGIN + (double)PLOT_HEIGHT * plot->nr_panels;
	double above = PLOT_MARGIN + (double)PLOT_HEIGHT * p;
	bool last = p + 1 == plot->nr_panels;

	fprintf(gp, "set tmargin at screen %.4f\nset bmargin at screen %.4f\n",
		1 - (above + 30) / height, 1 - (above + PLOT_HEIGHT - (last ? 60 : 20)) / height);
	fprintf(gp, "set ylabel \"%s\" offset 1.5\nset xlabel \"%s\"\nset format x \"%s\"\n", panel->y_label,
		last ? plot->x_label : "", last ? "%g" : "");
	fprintf(gp, "unset label\nset label 1 \"%s\" at graph 0, graph 1.05 left font \",13\"\n", panel->title);
	for (unsigned m = 0; m < panel->nr_marks; m++)
		fprintf(gp,
			"set label %u \"%s\" at %g, %g right offset -0.5,0.6 tc rgb \"#555555\" font \",11\"\n",
			m + 2, panel->marks[m].label, plot->x_max, panel->marks[m].y);
	fputs("plot ", gp);
	for (unsigned l = 0; l < plot->nr_pens; l++)
		fprintf(gp, "%s$d%u_%u using 1:2 with lines lw %g lc rgb \"%s\" notitle", l ? ", \\\n  " : "", p,
			l, plot->pens[l].width, plot->pens[l].colour);
	for (unsigned m = 0; m < panel->nr_marks; m++)
		fprintf(gp, ", \\\n  %g with lines lw 1.5 dt (10,6) lc rgb \"#555555\" notitle",
			panel->marks[m].y);
	fputs("\n", gp);
}

/* The legend, from right to left on the first panel's title line; gnuplot's own wraps sooner than it has to. */
static void write_legend(FILE *gp, const struct plot *plot, double height)
{
	const double y = 1 - (PLOT_MARGIN + 14) / height;
	double x = 0.985 * PLOT_WIDTH;

	for (unsigned l = plot->nr_pens; l-- > 0;) {
		const struct plot_pen *pen = &plot->pens[l];

		x -= 8.0 * (double)strlen(pen->label);                  /* a letter's width, about */
		fprintf(gp, "set label %u \"%s\" at screen %.4f, screen %.4f left\n", l + 3, pen->label,
			x / PLOT_WIDTH, y);
		fprintf(gp,
			"set arrow %u from screen %.4f, screen %.4f to screen %.4f, screen %.4f nohead lw %g lc rgb \"%s\"\n",
			l + 1, (x - 36) / PLOT_WIDTH, y, (x - 7) / PLOT_WIDTH, y, pen->width, pen->colour);
		x -= 36 + 18;
	}
}

static void write_plot(FILE *gp, const struct plot *plot, const char *path)
{
	unsigned height = PLOT_MARGIN + PLOT_HEIGHT * plot->nr_panels;

	/* with cairo lines are smooth; the other terminal is in every gnuplot that can do PNG */
	fprintf(gp, "if (strstrt(GPVAL_TERMINALS, \"pngcairo\")) {\n"
		"set terminal pngcairo noenhanced size %u,%u font \"sans,12\" background \"#ffffff\"\n} else {\n"
		"set terminal png noenhanced size %u,%u background \"#ffffff\"\n}\n", PLOT_WIDTH, height, PLOT_WIDTH, height);
	fprintf(gp, "set output \"%s\"\n", path);
	write_data(gp, plot);
	fputs("set multiplot\nunset key\n", gp);
	write_legend(gp, plot, height);
	fprintf(gp, "set label 1 \"%s\" at screen 0.015, screen %.4f left font \",17\"\n"
		"set label 2 \"%s\" at screen 0.015, screen %.4f left font \",11\" tc rgb \"#555555\"\n"
		"unset border\nunset tics\nset xrange [0:1]\nset yrange [0:1]\nplot -1 notitle\nunset arrow\n",
		plot->title, 1 - 25.0 / height, plot->subtitle, 1 - 52.0 / height);
	fprintf(gp, "set lmargin at screen 0.08\nset rmargin at screen 0.985\n"
		"set border 3 lc rgb \"#888888\"\nset xtics nomirror tc rgb \"#333333\"\nset ytics nomirror tc rgb \"#333333\"\n"
		"set grid ytics lt 1 lw 0.5 lc rgb \"#dddddd\"\nset xrange [0:%g]\n", plot->x_max);
	for (unsigned p = 0; p < plot->nr_panels; p++) {
		double top = 0;

		for (unsigned l = 0; l < plot->nr_pens; l++)
			for (unsigned i = 0; i < plot->panels[p].lines[l].nr; i++)
				top = fmax(top, plot->panels[p].lines[l].y[i]);
		for (unsigned m = 0; m < plot->panels[p].nr_marks; m++)
			top = fmax(top, plot->panels[p].marks[m].y);
		fprintf(gp, "set yrange [0:%g]\n", top > 0 ? top * 1.12 : 1);
		write_panel(gp, plot, p);
	}
	fputs("unset multiplot\nset output\n", gp);
}

/* The path from the working directory, where the file is below it: shorter to read, and enough to open it. */
static const char *from_here(const char *path)
{
	static char here[PATH_MAX];
	size_t len;

	if (!getcwd(here, sizeof here))
		return path;
	len = strlen(here);
	return !strncmp(path, here, len) && path[len] == '/' ? path + len + 1 : path;
}

static bool ended_well(int status)
{
	return status != -1 && WIFEXITED(status) && !WEXITSTATUS(status);
}

void plot_draw(const struct plot *plot, const char *name, FILE *out)
{
	char path[PATH_MAX];
	FILE *gp;
	int ret;

	ret = make_path(name, path, sizeof path);
	if (ret) {
		fprintf(out, "No picture: there is no place for it beside the program (%s).\n", strerror(-ret));
		return;
	}
	if (!ended_well(system("command -v gnuplot >/dev/null 2>&1"))) {
		fputs("No picture: there is no gnuplot here (apt-get install gnuplot-nox brings one).\n", out);
		return;
	}
	gp = popen("gnuplot", "w");
	if (!gp) {
		fprintf(out, "No picture: gnuplot could not be started (%s).\n", strerror(errno));
		return;
	}
	write_plot(gp, plot, path);
	if (ended_well(pclose(gp)))
		fprintf(out, "Picture: %s\n", from_here(path));
	else
		fputs("No picture: gnuplot failed; what it said is above.\n", out);
}
