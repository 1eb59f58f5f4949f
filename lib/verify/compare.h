// Bit for bit comparison. Shape, dtype and every bit must be equal; -0.0 is not +0.0; any NaN equals any NaN. There is
// no tolerance.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/sha256.h"

namespace samba::verify {

// Where a result first left the recorded one.
struct Difference {
  std::string name;    // "out.y", "stage.norm1.out", "steps/3/loss_bits"
  std::string detail;  // a sentence for a human
  // Of a tensor of floats:
  std::optional<Index> index;  // row-major
  double got = 0.0, want = 0.0;
  std::uint32_t got_bits = 0, want_bits = 0;
  std::int64_t ulp = 0;
  Index different = 0, of = 0;
  std::shared_ptr<const Array> got_values;  // the whole tensor
  std::string hint;                         // what may have gone wrong (hint.h)
};

std::optional<Difference> first_difference(const std::string& name, ConstArray got, ConstArray want);

std::string sha256_of(ConstArray array);
std::string bits_text(float value);  // "0x3f800000"
float float_from_bits_text(const std::string& text);

// "Not run, and why." Thrown by the runner of a case; never counted as equal.
class NotApplicable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Collects what a case compares. The first difference is the one that is told.
class Checker {
 public:
  // `digests`: keeps a SHA-256 over the names and values of everything compared.
  explicit Checker(bool digests = false);
  void array(const std::string& name, ConstArray got, ConstArray want);
  void sha256(const std::string& name, ConstArray got, const std::string& want);
  void bits(const std::string& name, float got, const nlohmann::json& want);  // want: "0x...", or null: not compared
  void text(const std::string& name, const std::string& got, const std::string& want);
  void integer(const std::string& name, std::int64_t got, std::int64_t want);
  void holds(const std::string& name, bool truth, const std::string& otherwise);
  void add(Difference difference);

  const std::vector<Difference>& differences() const { return differences_; }
  std::size_t compared() const { return compared_; }
  // Of all that was computed so far, any NaN as one; empty without `digests`.
  std::string digest();

 private:
  void add_to_digest(const std::string& name, ConstArray got);

  std::optional<Sha256> digest_;
  std::vector<Difference> differences_;
  std::size_t compared_ = 0;
};

}  // namespace samba::verify
