// Inside lib/verify: what a case computes on its way, in order, so that two executors can be compared stage by stage
// where a file keeps nothing but digests of results.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "samba/blocks/stages.h"
#include "samba/kernels/executor.h"
#include "samba/verify/compare.h"

namespace samba::verify {

// Keeps a digest of every value that one run of a case notes: stages of blocks and stacks, and results. Memory holds
// one of them at a time.
class Trace final : public StageRecorder {
 public:
  struct Entry {
    std::string name;
    std::string digest;
  };

  // `reference`: the first entry that differs from it is kept with its values, and nothing behind it is looked at.
  // `kept`: the number of an entry to keep.
  Trace(Executor& executor, const std::vector<Entry>* reference, std::optional<std::size_t> kept)
      : executor_(executor), reference_(reference), kept_(kept) {}

  // What the following entries belong to: "calls/3 backward".
  void begin_call(const std::string& what) { call_ = what; }
  void record(std::string_view name, const Shape& shape, const float* device) override;
  void note(const std::string& name, ConstArray values);

  const std::vector<Entry>& entries() const { return entries_; }
  std::optional<std::size_t> kept() const { return values_ ? kept_ : std::nullopt; }
  const std::optional<Array>& values() const { return values_; }

 private:
  void add(const std::string& name, const ConstArray& values);

  Executor& executor_;
  const std::vector<Entry>* reference_;
  std::optional<std::size_t> kept_;
  std::string call_;
  std::vector<Entry> entries_;
  std::optional<Array> values_;
};

// Runs a case on an executor with everything noted in a trace. Refusals and differences of the case are no matter here.
using TracedRun = std::function<void(Executor& executor, Trace& trace)>;

// The earliest entry in which `executor` differs from the reference executor, with both values. Empty when there is
// none: the recording of stages may change what a faulty executor computes.
std::optional<Difference> earliest_difference(Executor& executor, Executor& reference, const TracedRun& run);

}  // namespace samba::verify
