#include "samba/verify/model_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/formats/file_hashes.h"
#include "samba/generate/decode_session.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/philox.h"
#include "samba/train/checkpoint.h"
#include "samba/verify/compare.h"
#include "samba/verify/slices.h"
#include "samba/verify/state_pieces.h"

namespace samba::verify {
namespace {

// The reference executor is slow: fewer positions are compared with it.
constexpr Index kReferenceLength = 24;

// The sizes into which a prompt is cut, again and again until it ends: single tokens, around the chunk of Mamba (64).
const std::vector<std::vector<Index>> kCuts = {{1}, {2, 3}, {7}, {31, 1}, {63, 1}, {64}, {65}};

std::string piece_name(std::size_t layer, const std::string& piece) {
  return "layer " + std::to_string(layer) + " " + piece;
}

// The first difference of two decode states, pieces in the order of their layers.
std::optional<Difference> state_difference(const SambaState& got, const SambaState& want) {
  for (std::size_t layer = 0; layer < want.layers(); ++layer) {
    if (got.layer(layer).counters() != want.layer(layer).counters()) {
      Difference difference;
      difference.name = piece_name(layer, "counters");
      difference.detail = "differ";
      return difference;
    }
    const ArrayMap mine = held_pieces(got.layer(layer));
    for (const auto& [piece, array] : held_pieces(want.layer(layer))) {
      if (auto difference = first_difference(piece_name(layer, piece), mine.at(piece), array)) return difference;
    }
  }
  return std::nullopt;
}

// The place in the whole piece of a cell of what is held of it.
std::size_t whole_cell(std::size_t cell, const Shape& held_shape, const Shape& whole) {
  if (held_shape == whole) return cell;
  const auto row = static_cast<std::size_t>(element_count(held_shape) / held_shape[0]);
  return cell / row * static_cast<std::size_t>(element_count(whole) / whole[0]) + cell % row;
}

float one_ulp_away(float value) {
  if (is_nan(value) || (to_bits(value) & ~kSignBit) == 0x7F7FFFFFU) return value;
  return from_bits(to_bits(value) + 1);
}

class ModelChecker {
 public:
  ModelChecker(const Path& path, const MakeExecutor& make_executor, const std::vector<std::string>& sets,
               const ModelCheckOptions& options, const std::function<void(const ModelCheck&)>& done)
      : place_(find_model(path)), make_executor_(make_executor), sets_(sets), options_(options), done_(done) {}

  std::vector<ModelCheck> run() {
    check("checksums", [&] { return checksums(); });
    check("finite weights", [&] { return load(); });
    if (executor_->numeric_mode() != NumericMode::identical) return run_relaxed();
    check("decode equals prefill", [&] { return decode_equals_prefill(); });
    check("chunks of any size", [&] { return chunks_agree(); });
    check("batch rows independent", [&] { return rows_independent(); });
    check("1 thread equals N threads", [&] { return threads_agree(); });
    check("instruction sets agree", [&] { return instruction_sets_agree(); });
    check("packed equals expanded", [&] { return packed_agrees(); });
    check("device equals reference", [&] { return reference_agrees(); });
    check("differences are seen", [&] { return differences_are_seen(); });
    return std::move(checks_);
  }

 private:
  template <class Run>
  void check(const std::string& name, Run&& run) {
    ModelCheck result;
    result.name = name;
    first_.reset();
    const auto start = std::chrono::steady_clock::now();
    result.detail = run();
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (first_) {
      result.passed = false;
      result.detail = first_->name + " " + first_->detail;
    }
    if (done_) done_(result);
    checks_.push_back(std::move(result));
  }

  // The modes that do not promise identity: what they do promise is checked, what they do not is told.
  std::vector<ModelCheck> run_relaxed() {
    if (executor_->numeric_mode() == NumericMode::deterministic) {
      check("the same call again", [&] { return repeated(); });
      check("1 thread equals N threads", [&] { return threads_agree(); });
    }
    check("decode beside prefill", [&] { return decode_beside_prefill(); });
    return std::move(checks_);
  }

  std::string repeated() {
    compare("logits of the same call", stack_->forward(ids_), logits_);
    return std::to_string(length_) + " positions, twice";
  }

  std::string decode_beside_prefill() {
    const auto state = stack_->allocate_state(options_.rows, length_);
    const Index vocab = stack_->config().vocab;
    float largest = 0.0F;
    for (Index at = 0; at < length_; ++at) {
      const Array row = stack_->step(slice(ids_, 1, at, at + 1), *state);
      const Array want = reshaped(slice(logits_, 1, at, at + 1), {options_.rows, vocab});
      for (std::size_t i = 0; i < row.floats().size(); ++i) {
        largest = std::max(largest, std::abs(row.floats()[i] - want.floats()[i]));
      }
    }
    char text[96];
    std::snprintf(text, sizeof text, "the logits differ by %.3g at most; equality is not promised",
                  static_cast<double>(largest));
    return text;
  }

  void compare(const std::string& name, const Array& got, const Array& want) {
    if (!first_) first_ = first_difference(name, got, want);
  }
  void compare_states(const std::string& name, const SambaState& got, const SambaState& want) {
    if (first_) return;
    first_ = state_difference(got, want);
    if (first_) first_->name = name + ": " + first_->name;
  }
  void fail(const std::string& name, const std::string& detail) {
    if (first_) return;
    first_.emplace();
    first_->name = name;
    first_->detail = detail;
  }

  std::string checksums() const {
    if (is_own_form(place_.form) && place_.form != ModelForm::folder) {
      const CheckpointSummary summary = inspect_checkpoint(place_.path, true);
      return std::to_string(summary.bytes) + " bytes, all digests hold";
    }
    const HashesChecked hashes = check_hashes(place_.path);
    if (hashes.present) {
      return std::to_string(hashes.bytes) + " bytes, all digests of " + std::to_string(hashes.tensors) +
             " tensors and " + std::to_string(hashes.files) + " files hold";
    }
    const OpenModel model = open_model(place_);
    for (const ModelTensor& tensor : model.tensors) tensor.load();
    return std::to_string(model.file_bytes) + " bytes, read whole; " + std::string(model_form_name(place_.form)) +
           " has no digests, --write-hashes makes them";
  }

  std::string load() {
    executor_ = make_executor_({});
    stack_ = load_model(*executor_, place_);
    length_ = std::max<Index>(2, std::min(options_.length, position_limit(stack_->config())));
    ids_ = Array(DType::int32, {options_.rows, length_});
    for (std::size_t i = 0; i < ids_.values<std::int32_t>().size(); ++i) {
      ids_.values<std::int32_t>()[i] = static_cast<std::int32_t>(stream_word(options_.seed, 0, i) %
                                                                 static_cast<std::uint64_t>(stack_->config().vocab));
    }
    logits_ = stack_->forward(ids_);
    whole_ = stack_->allocate_state(options_.rows, length_);
    compare("logits with a state", stack_->forward(ids_, *whole_), logits_);
    return std::to_string(stack_->registry().total()) + " parameters";
  }

  std::string decode_equals_prefill() {
    const Index vocab = stack_->config().vocab;
    const auto state = stack_->allocate_state(options_.rows, length_);
    const Index prefill = length_ / 2;
    compare("logits of the prefill", stack_->forward(slice(ids_, 1, 0, prefill), *state),
            slice(logits_, 1, 0, prefill));
    for (Index at = prefill; at < length_; ++at) {
      const Array row = stack_->step(slice(ids_, 1, at, at + 1), *state);
      compare("logits of the token at position " + std::to_string(at), row,
              reshaped(slice(logits_, 1, at, at + 1), {options_.rows, vocab}));
    }
    compare_states("state after the last token", *state, *whole_);
    return std::to_string(prefill) + " positions at once, " + std::to_string(length_ - prefill) +
           " single tokens: logits and " + std::to_string(pieces_of_whole()) + " pieces of the state";
  }

  std::size_t pieces_of_whole() const {
    std::size_t count = 0;
    for (std::size_t layer = 0; layer < whole_->layers(); ++layer) count += whole_->layer(layer).pieces().size();
    return count;
  }

  std::string chunks_agree() {
    std::string sizes;
    for (const std::vector<Index>& cut : kCuts) {
      const auto state = stack_->allocate_state(options_.rows, length_);
      std::string text;
      for (const Index size : cut) text += (text.empty() ? "" : "+") + std::to_string(size);
      sizes += (sizes.empty() ? "" : ", ") + text;
      std::size_t turn = 0;
      for (Index at = 0; at < length_ && !first_;) {
        const Index end = std::min(length_, at + cut[turn++ % cut.size()]);
        compare("chunks of " + text + ", logits of the positions from " + std::to_string(at),
                stack_->forward(slice(ids_, 1, at, end), *state), slice(logits_, 1, at, end));
        at = end;
      }
      compare_states("chunks of " + text, *state, *whole_);
    }
    return std::to_string(length_) + " positions in chunks of " + sizes + "; logits and states";
  }

  std::string rows_independent() {
    const Index rows = options_.rows;
    for (Index row = 0; row < rows; ++row) {
      compare("logits of row " + std::to_string(row) + " alone", stack_->forward(slice(ids_, 0, row, row + 1)),
              slice(logits_, 0, row, row + 1));
    }
    std::vector<Array> backwards, wanted;
    for (Index row = rows; row-- > 0;) {
      backwards.push_back(slice(ids_, 0, row, row + 1));
      wanted.push_back(slice(logits_, 0, row, row + 1));
    }
    backwards.push_back(slice(ids_, 0, 0, 1));
    wanted.push_back(slice(logits_, 0, 0, 1));
    compare("logits of the rows in another order, one of them twice", stack_->forward(join(backwards, 0)),
            join(wanted, 0));
    std::vector<Index> lengths;
    for (Index row = 0; row < rows; ++row) lengths.push_back(std::max<Index>(1, length_ - 11 * row));
    Array want = slice(logits_, 0, 0, rows);
    const Index vocab = stack_->config().vocab;
    for (Index row = 0; row < rows; ++row) {
      const auto from = static_cast<std::size_t>((row * length_ + lengths[static_cast<std::size_t>(row)]) * vocab);
      const auto to = static_cast<std::size_t>((row + 1) * length_ * vocab);
      std::fill(want.floats().begin() + static_cast<std::ptrdiff_t>(from),
                want.floats().begin() + static_cast<std::ptrdiff_t>(to), 0.0F);
    }
    compare("logits of a ragged batch", stack_->forward(ids_, lengths), want);
    return std::to_string(rows) + " rows: each alone, in another order, one twice, ragged with padding";
  }

  std::unique_ptr<SambaStack> stack_on(Executor& executor) const { return load_model(executor, place_); }
  Array logits_on(Executor& executor, Index length) const {
    return stack_on(executor)->forward(slice(ids_, 1, 0, length));
  }

  // Prefill, then single tokens: the routes of decoding too.
  void compare_on(Executor& executor, const std::string& name, Index length) {
    const auto stack = stack_on(executor);
    compare("logits " + name, stack->forward(slice(ids_, 1, 0, length)), slice(logits_, 1, 0, length));
    if (executor.numeric_mode() != NumericMode::identical) return;  // decode need not equal prefill
    const Index tokens = std::min<Index>(8, length - 1);
    const auto state = stack->allocate_state(options_.rows, length);
    stack->forward(slice(ids_, 1, 0, length - tokens), *state);
    for (Index at = length - tokens; at < length; ++at) {
      compare("logits " + name + " of the token at position " + std::to_string(at),
              stack->step(slice(ids_, 1, at, at + 1), *state),
              reshaped(slice(logits_, 1, at, at + 1), {options_.rows, stack->config().vocab}));
    }
  }

  std::string threads_agree() {
    const int threads = std::max(2, executor_->threads());
    std::vector<int> counts = {1, 2, 3, threads};
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    std::string text, device;
    for (const int count : counts) {
      const auto executor = make_executor_({"", "", count});
      device = executor->name();
      compare_on(*executor, "with " + std::to_string(count) + " threads", length_);
      text += (text.empty() ? "" : ", ") + std::to_string(executor->threads());
    }
    const bool identical = executor_->numeric_mode() == NumericMode::identical;
    return device + " with " + text + " threads; prefill" + (identical ? " and 8 tokens" : "");
  }

  std::string instruction_sets_agree() {
    if (executor_->name() != "cpu")
      return "not applicable: the device " + executor_->name() + " has no instruction sets";
    std::string text;
    for (const std::string& set : sets_) {
      const auto executor = make_executor_({"cpu", set, 0});
      // The scalar one has no fused step of its own and takes long.
      compare_on(*executor, "with the instruction set " + set, set == "scalar" ? short_length() : length_);
      text += (text.empty() ? "" : ", ") + set;
    }
    return text + "; prefill and 8 tokens";
  }

  Index short_length() const { return std::min(length_, kReferenceLength); }

  std::string packed_agrees() {
    std::vector<WeightFormat> formats = {WeightFormat::bfloat16, WeightFormat::int8};
    const bool stored = stack_->weight_format() != WeightFormat::float32;
    if (stored) formats = {stack_->weight_format()};
    std::string text;
    const Array ids = slice(ids_, 1, 0, short_length());
    for (const WeightFormat format : formats) {
      const WeightMap packed = stored ? stack_->stored_weights() : pack(stack_->weights(), format);
      SambaStack small(*executor_, stack_->config(), packed, SambaStack::Use::inference);
      const SambaStack wide_source(*executor_, stack_->config(), packed, SambaStack::Use::inference);
      SambaStack wide(*executor_, stack_->config(), wide_source.weights(), SambaStack::Use::inference);
      const std::string name(weight_format_name(format));
      compare("logits with " + name + " weights", small.forward(ids), wide.forward(ids));
      text += (text.empty() ? "" : ", ") + name;
    }
    return "matrices as " + text + (stored ? " (as they are stored)" : "") + ", against their float32 values";
  }

  std::string reference_agrees() {
    const auto reference = make_executor_({"reference", "", 1});
    const Index length = short_length();
    compare("logits of the reference executor", logits_on(*reference, length), slice(logits_, 1, 0, length));
    return executor_->name() + " (" + executor_->instruction_set() + ") and reference, " + std::to_string(length) +
           " positions";
  }

  // One cell of every state piece is moved by one ulp: the comparison has to name that piece, that cell, both values.
  std::string differences_are_seen() {
    std::size_t moved = 0;
    for (std::size_t layer = 0; layer < whole_->layers(); ++layer) {
      const ArrayMap pieces = whole_->layer(layer).pieces();
      for (const auto& [piece, array] : held_pieces(whole_->layer(layer))) {
        if (array.size() == 0 || array.dtype() != DType::float32) continue;
        const auto cell =
            static_cast<std::size_t>(stream_word(options_.seed, 1, moved) % static_cast<std::uint64_t>(array.size()));
        const Array& all = pieces.at(piece);
        const float moved_value = one_ulp_away(array.floats()[cell]);
        Array edited = slice(all, 0, 0, all.shape().at(0));
        edited.floats()[whole_cell(cell, array.shape(), all.shape())] = moved_value;
        const auto state = whole_->clone();
        state->layer(layer).set({{piece, edited.view()}}, {});
        ++moved;
        const auto seen = state_difference(*state, *whole_);
        const bool told = seen && seen->name == piece_name(layer, piece) && seen->index == static_cast<Index>(cell) &&
                          seen->ulp == 1 && seen->different == 1 && seen->got_bits == to_bits(moved_value) &&
                          seen->want_bits == to_bits(array.floats()[cell]);
        if (!told) {
          fail(piece_name(layer, piece), "cell " + std::to_string(cell) + " was moved by one ulp and not reported so" +
                                             (seen ? ": " + seen->name + " " + seen->detail : ""));
        } else if (example_.empty()) {
          example_ = seen->name + " " + seen->detail;
        }
      }
    }
    return "one ulp in one cell of each of " + std::to_string(moved) + " pieces, each told; e.g. " + example_;
  }

  const ModelPlace place_;
  const MakeExecutor& make_executor_;
  const std::vector<std::string>& sets_;
  const ModelCheckOptions& options_;
  const std::function<void(const ModelCheck&)>& done_;
  std::vector<ModelCheck> checks_;
  std::optional<Difference> first_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<SambaStack> stack_;
  Index length_ = 0;
  Array ids_;
  Array logits_;
  std::unique_ptr<SambaState> whole_;  // after all positions at once; goes before the stack
  std::string example_;
};

}  // namespace

std::vector<ModelCheck> check_model(const Path& path, const MakeExecutor& make_executor,
                                    const std::vector<std::string>& instruction_sets, const ModelCheckOptions& options,
                                    const std::function<void(const ModelCheck&)>& done) {
  return ModelChecker(path, make_executor, instruction_sets, options, done).run();
}

}  // namespace samba::verify
