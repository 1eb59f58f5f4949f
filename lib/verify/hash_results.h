// Inside lib/verify: results of which a file keeps the digest only (test/golden/hashes/README.md sections 1 and 2).
#pragma once

#include <map>
#include <string>

#include "samba/verify/runner.h"

namespace samba::verify {

// Compares shape, dtype (default float32) and SHA-256 with {"shape", "sha256", "dtype"?, "first_bits"?}; the first
// values help to tell a wrong draw or a transposed result from a rounding difference.
void check_digest(Checker& check, const std::string& name, ConstArray got, const json& expected);

// The results of a case by name: each one made is compared with its digest and kept for "same_as".
class HashResults {
 public:
  explicit HashResults(RunContext& run);

  void add(const std::string& name, Array got);
  const Array& at(const std::string& name) const;
  // A second claim of a call: `got` equals the positions of that result's token axis.
  void check_same_as(const json& call, const Array& got);
  // Every result of the file was made.
  void check_complete();

 private:
  RunContext& run_;
  std::map<std::string, const json*> expected_;
  ArrayMap made_;
};

// The tensors of "draws": one stream id each, in order; each is compared with its digest.
ArrayMap draw_tensors(RunContext& run);

// The weights among them, "w.<name>", in the case's weight_format; expanded ones are compared with their digests.
WeightMap drawn_weights(RunContext& run, const ArrayMap& drawn);

// The state pieces and counters of an "expect": {piece: result name}; buffer_* cut to the buffered tokens.
void check_state_results(RunContext& run, HashResults& results, const std::string& where, const json& expected,
                         const ArrayMap& pieces, const std::map<std::string, Index>& counters);

// The positions [from, to) of a call on the token axis; the whole axis when the call has none.
Array cut_positions(const json& call, const Array& array);

}  // namespace samba::verify
