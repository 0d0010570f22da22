/* The judge as a library for programs of any language: what `harness judge` does, without a
 * process; and the reader of recordings, which says all that is wrong with one.
 *
 * It judges checkpoints that have no native block (block "module"), from the recording alone;
 * others are reported `unsupported`, and `harness judge` has them. Nothing prints, exits or throws;
 * every call may come from any thread. All text is UTF-8 and ends with a NUL. */
#ifndef PLUMBLINE_JUDGE_H
#define PLUMBLINE_JUDGE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Judges the tensors of a safetensors file, named "<checkpoint id>/<output name>", against the
 * recording in a folder.
 *
 * contract: "inferred", or the rounding that is demanded: "eager", "fused"; and what the recording
 * was made with inside, "eager+sums-16".
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

/* NULL is fine. */
void plumbline_free(char* text);

/* "0.2.0": the version of the harness that it is of. Not to be freed. */
const char* plumbline_judge_version(void);

#ifdef __cplusplus
}
#endif

#endif
