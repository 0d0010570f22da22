/* The judge as a library for programs of any language: what `harness judge` does, without a
 * process; and the reader of recordings, which says all that is wrong with one.
 *
 * Nothing prints, exits or throws; every call may come from any thread. All text is UTF-8 and ends
 * with a NUL. */
#ifndef PLUMBLINE_JUDGE_H
#define PLUMBLINE_JUDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Judges the tensors of a safetensors file, named "<checkpoint id>/<output name>", against the
 * recording in a folder.
 *
 * contract: "inferred", or the rounding that is demanded: "eager", "fused" or "flash"; and what the
 * recording was made with inside, "eager+sums-16".
 * margins: 0 leaves out which planted bugs would pass.
 * text: is set in any case, to memory that the caller gives back by plumbline_free(), or to NULL if
 *   there was no memory for it. On 0: one JSON object per line and judged checkpoint, as `harness
 *   judge --json` writes them. Else: why nothing was judged.
 *
 * Returns 0, also where outputs are wrong, and the exit code of `harness judge` (2: a call that
 * makes no sense, 3: bad input, 7: an error of this library) where nothing was judged. */
int plumbline_judge(const char* recording, const char* outputs, const char* contract, int margins,
                    char** text);

/* What is wrong with the recording in a folder: every file, hash and field is looked at.
 *
 * text: as above. On 0: a line for each finding, "" where the recording is valid. Else: why it
 * could not be looked at. */
int plumbline_validate(const char* recording, char** text);

/* What outputs of one call are held to, for programs that have their tensors somewhere else, on a
 * graphics card say: they add up figures there, and the limits and what is beyond them are the
 * judge's. One output of one call; not to be used by two threads at once while it is set. */
typedef struct PlumblineLimits PlumblineLimits;

/* description: JSON, as harness/trace/described_output.h has it.
 * limits: the new limits, to be given back by plumbline_limits_free(); NULL where that fails.
 * text: on 0 JSON: {"record": [[field, numbers], ...], "limits": the same of what has to be set,
 *   "noise": of each way to round how many times the noise of float32 is taken from distances,
 *   "alike": whether values of one significand in a row count}. Else: why there are none. */
int plumbline_limits_new(const char* description, PlumblineLimits** limits, char** text);

/* Sets what the limits are derived from: `count` numbers, in the order of "limits" above. */
int plumbline_limits_set(PlumblineLimits* limits, const double* values, size_t count, char** text);

/* The gates that a row of plumbline_limits_judge() has a number for, a line each: "margin" first,
 * the largest of all. Not to be freed. */
const char* plumbline_limits_gates(void);

/* Judges `count` outputs: their records one after the other. ratios: a row for each, statistic over
 * limit by gate; NaN where the output has no such gate. At most 1 passes. */
int plumbline_limits_judge(const PlumblineLimits* limits, const double* records, size_t count,
                           double* ratios, char** text);

/* The verdict on one output, in words. record: as above, with the indices of the worst element and
 * groups where words name them. details: JSON, and along: energies, as
 * harness/trace/explained_output.h has them.
 * text: on 0 JSON: {"verdict": the output as `harness judge --json` has it, as far as that is known
 *   without its elements, "element_limit", "bits": which roundings they follow, "known_bug",
 *   "bug_words": that bug in words}. */
int plumbline_limits_explain(PlumblineLimits* limits, const double* record, const char* details,
                             const double* along, size_t count, char** text);

/* The largest error of one element, in units of its size, that any correct kernel may have. */
double plumbline_limits_element(const PlumblineLimits* limits);

/* Of groups of these sizes (0: one that does not count) how much larger the worst one's error may
 * be than a typical one's: into kappas. */
void plumbline_kappas(const double* sizes, size_t groups, double* kappas);

/* Whether a whole output's error, in units of its size, is at most that of the reference with what
 * that may be by chance; dtype: "bf16", "f16" or "f32". */
int plumbline_no_less_accurate(double error, double of_reference, const char* dtype);

/* What a statistic of correct kernels stays below whose mean and deviation simulated ones show, in
 * 16 bits (narrow) or 32. How many bits they may have otherwise than their model, by mean,
 * deviation and largest count: 8 at least. Fewer elements than plumbline_least_bits() prove nothing
 * about bits. */
double plumbline_spread_limit(double mean, double deviation, int narrow);
double plumbline_bits_limit(double mean, double deviation, double largest);
int64_t plumbline_least_bits(void);

/* NULL is fine. */
void plumbline_limits_free(PlumblineLimits* limits);

/* NULL is fine. */
void plumbline_free(char* text);

/* "0.2.0": the version of the harness that it is of. Not to be freed. */
const char* plumbline_judge_version(void);

#ifdef __cplusplus
}
#endif

#endif
