// Which tokens a chain's outputs are judged at.
#pragma once

#include <vector>

#include "harness/chain/chain_rows.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// Recordings leave attention rows without an allowed key out of what they judge: a kernel may make
// anything of padding. In a chain that propagates: what final norm and head make of such a token is
// not judged either, nor are the keys and values that the next layers store for it. A token whose
// layer is judged never depends on them, since no query sees them.
//
// `tokens`: of each step. `goes_on`: a step continues the sequence of the one before.
// Gives for every row a bool tensor [batch, token], or [batch, slot] of caches; undefined: all.
std::vector<Tensor> judged_tokens(const Recording& recording, const ChainRows& chain,
                                  const std::vector<int64_t>& tokens, bool goes_on);

// Leaves padding out of them: what another program makes of it, if it has any, is its own matter.
// `left_pad`: of every row of the batch; empty: none.
void leave_out_padding(std::vector<Tensor>& judged, const Recording& recording,
                       const ChainRows& chain, const std::vector<int64_t>& tokens,
                       const std::vector<int64_t>& left_pad);

}  // namespace plumb::harness
