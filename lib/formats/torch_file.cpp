#include "samba/formats/torch_file.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "samba/core/error.h"
#include "samba/formats/zip_directory.h"

namespace samba {

namespace {

using Bytes = std::span<const std::byte>;

// Values live in one list and refer to each other by place, so that a pickle can neither nest them too deep nor tie
// them into rings.
using Place = std::uint32_t;

struct Value {
  enum class Kind { none, flag, integer, number, text, tuple, list, dictionary, name, storage, tensor };
  Kind kind = Kind::none;
  std::int64_t integer = 0;
  std::string text;          // of text; "module name" of a name; the key of a storage
  std::vector<Place> items;  // of tuple and list; key, value, key, value of a dictionary
  DType dtype = DType::float32;
  std::int64_t elements = 0;  // of a storage
  Shape shape;                // of a tensor, with its storage in `text` and the first element in `integer`
};
using Kind = Value::Kind;

constexpr std::array<std::pair<std::string_view, DType>, 8> kStorages = {{{"torch FloatStorage", DType::float32},
                                                                          {"torch DoubleStorage", DType::float64},
                                                                          {"torch HalfStorage", DType::float16},
                                                                          {"torch BFloat16Storage", DType::bfloat16},
                                                                          {"torch CharStorage", DType::int8},
                                                                          {"torch IntStorage", DType::int32},
                                                                          {"torch LongStorage", DType::int64},
                                                                          {"torch ByteStorage", DType::uint8}}};
constexpr std::size_t kMostValues = std::size_t{1} << 20;
constexpr std::size_t kMostAxes = 32;
constexpr std::size_t kLongestKey = 255;  // of a storage: each of its tensors keeps it

constexpr std::string_view kDictionary = "collections OrderedDict";
constexpr std::string_view kTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kParameter = "torch._utils _rebuild_parameter";

std::optional<DType> storage_dtype(std::string_view name) {
  for (const auto& [storage, dtype] : kStorages) {
    if (storage == name) return dtype;
  }
  return std::nullopt;
}

class PickleReader {
 public:
  PickleReader(Bytes bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  // The dictionary that the pickle is: names and tensors.
  std::map<std::string, Value> read() {
    while (!stopped_) step();
    std::map<std::string, Value> tensors;
    const Value& result = values_[pop()];
    if (result.kind != Kind::dictionary) refuse("is no dictionary of tensors");
    for (std::size_t i = 0; i + 1 < result.items.size(); i += 2) {
      const Value& key = values_[result.items[i]];
      const Value& value = values_[result.items[i + 1]];
      if (key.kind != Kind::text) refuse("has a key that is no text");
      if (value.kind != Kind::tensor) refuse("holds '" + key.text + "', which is no tensor");
      if (!tensors.emplace(key.text, value).second) refuse("holds the name '" + key.text + "' twice");
    }
    return tensors;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    refuse_corrupt("pickle", source_ + ": the pickle " + what);
  }

  std::uint64_t number(std::size_t width) {
    const Bytes raw = take(width);
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = (value << 8) | std::to_integer<std::uint64_t>(raw[i]);
    return value;
  }
  Bytes take(std::uint64_t size) {
    if (size > bytes_.size() - at_) refuse("ends too early");
    const Bytes result = bytes_.subspan(at_, static_cast<std::size_t>(size));
    at_ += static_cast<std::size_t>(size);
    return result;
  }
  std::string text(std::uint64_t size) {
    const Bytes raw = take(size);
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  std::string line() {
    std::string result;
    for (char c = static_cast<char>(number(1)); c != '\n'; c = static_cast<char>(number(1))) result += c;
    return result;
  }

  void push(Value value) {
    if (values_.size() == kMostValues) refuse("holds more than " + std::to_string(kMostValues) + " values");
    values_.push_back(std::move(value));
    stack_.push_back(static_cast<Place>(values_.size() - 1));
  }
  void push_integer(std::int64_t value, Kind kind = Kind::integer) {
    Value result;
    result.kind = kind;
    result.integer = value;
    push(std::move(result));
  }
  void push_text(std::string value, Kind kind) {
    Value result;
    result.kind = kind;
    result.text = std::move(value);
    push(std::move(result));
  }
  void push_list(std::vector<Place> items, Kind kind) {
    Value result;
    result.kind = kind;
    result.items = std::move(items);
    push(std::move(result));
  }
  Place pop() {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) refuse("takes a value that is not there");
    const Place top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Place top() {
    const Place place = pop();
    stack_.push_back(place);
    return place;
  }
  std::vector<Place> pop_mark() {
    if (marks_.empty()) refuse("has no mark where it needs one");
    std::vector<Place> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void push_tuple(std::size_t size) {
    std::vector<Place> items(size);
    for (std::size_t i = size; i-- > 0;) items[i] = pop();
    push_list(std::move(items), Kind::tuple);
  }

  void push_name(const std::string& name) {
    const bool known = name == kDictionary || name == kTensor || name == kParameter || storage_dtype(name);
    if (!known) refuse("names '" + name + "', which is none of a file of tensors; nothing is carried out");
    push_text(name, Kind::name);
  }

  void extend(const std::vector<Place>& items, Kind kind) {
    Value& target = values_[top()];
    if (target.kind != kind || (kind == Kind::dictionary && items.size() % 2 != 0)) refuse("is damaged");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  std::int64_t integer_of(Place place) const {
    if (values_[place].kind != Kind::integer) refuse("describes a tensor by something that is no integer");
    return values_[place].integer;
  }
  Shape integers_of(Place place) const {
    if (values_[place].kind != Kind::tuple) refuse("describes a tensor by something that is no tuple");
    if (values_[place].items.size() > kMostAxes) refuse("describes a tensor of too many axes");
    Shape shape;
    for (const Place item : values_[place].items) shape.push_back(integer_of(item));
    return shape;
  }

  // The arguments of _rebuild_tensor_v2: storage, first element, sizes, strides, requires_grad, hooks.
  Value tensor_of(const std::vector<Place>& arguments) const {
    if (arguments.size() < 4 || values_[arguments[0]].kind != Kind::storage)
      refuse("describes a tensor it cannot have");
    Value tensor = values_[arguments[0]];
    tensor.kind = Kind::tensor;
    tensor.integer = integer_of(arguments[1]);
    tensor.shape = integers_of(arguments[2]);
    const Shape strides = integers_of(arguments[3]);
    if (tensor.integer < 0 || strides.size() != tensor.shape.size()) refuse("describes a tensor it cannot have");
    for (const Index size : tensor.shape) {
      if (size < 0) refuse("describes a tensor of negative size");
    }
    Index count = 0;
    try {
      count = element_count(tensor.shape);
    } catch (const Error& error) {
      refuse(std::string("holds a tensor that cannot be: ") + error.what());
    }
    Index expected = 1;
    for (std::size_t i = strides.size(); count > 0 && i-- > 0;) {
      if (tensor.shape[i] > 1 && strides[i] != expected) {
        refuse("holds a tensor that is not contiguous (" + shape_text(tensor.shape) + " with strides " +
               shape_text(strides) + ")");
      }
      expected *= tensor.shape[i];
    }
    if (count > tensor.elements || tensor.integer > tensor.elements - count) {
      refuse("holds a tensor beyond its storage of " + std::to_string(tensor.elements) + " elements");
    }
    return tensor;
  }

  void reduce() {
    const Value& arguments = values_[pop()];
    const Value& function = values_[pop()];
    if (function.kind != Kind::name || arguments.kind != Kind::tuple) refuse("calls something that is no name");
    const std::vector<Place> items = arguments.items;
    if (function.text == kDictionary && items.empty()) {
      push_list({}, Kind::dictionary);
    } else if (function.text == kTensor) {
      push(tensor_of(items));
    } else if (function.text == kParameter && !items.empty() && values_[items[0]].kind == Kind::tensor) {
      push(Value(values_[items[0]]));
    } else {
      refuse("calls '" + function.text + "', which is not carried out");
    }
  }

  // ("storage", type, key, location, elements)
  void persistent() {
    const Value& id = values_[pop()];
    if (id.kind != Kind::tuple || id.items.size() != 5 || values_[id.items[0]].text != "storage" ||
        values_[id.items[1]].kind != Kind::name || values_[id.items[2]].kind != Kind::text) {
      refuse("refers to something that is no storage");
    }
    const auto dtype = storage_dtype(values_[id.items[1]].text);
    if (!dtype) refuse("refers to a storage of '" + values_[id.items[1]].text + "'");
    Value storage;
    storage.kind = Kind::storage;
    storage.dtype = *dtype;
    storage.text = values_[id.items[2]].text;
    if (storage.text.size() > kLongestKey) refuse("names a storage by too long a key");
    storage.elements = integer_of(id.items[4]);
    if (storage.elements < 0) refuse("refers to a storage of negative size");
    push(std::move(storage));
  }

  void long_integer() {
    const std::uint64_t width = number(1);
    if (width > 8) refuse("holds an integer of more than 8 bytes");
    const Bytes raw = take(width);
    std::uint64_t value = width > 0 && (raw[width - 1] & std::byte{0x80}) != std::byte{0} ? ~std::uint64_t{0} : 0;
    for (std::size_t i = raw.size(); i-- > 0;) value = (value << 8) | std::to_integer<std::uint64_t>(raw[i]);
    push_integer(static_cast<std::int64_t>(value));
  }

  void memoize(std::uint64_t key) { memo_[key] = top(); }
  void recall(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) refuse("recalls a value that is not there");
    stack_.push_back(found->second);
  }

  void step() {
    const auto code = static_cast<unsigned char>(number(1));
    switch (code) {
      case 0x80:  // PROTO
        if (const std::uint64_t version = number(1); version > 4) refuse("has version " + std::to_string(version));
        return;
      case 0x95:  // FRAME
        take(8);
        return;
      case '.':
        stopped_ = true;
        return;
      case '(':
        marks_.push_back(stack_.size());
        return;
      case 'N':
        return push(Value());
      case 0x88:
      case 0x89:
        return push_integer(code == 0x88 ? 1 : 0, Kind::flag);
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4)));
      case 'K':
        return push_integer(static_cast<std::int64_t>(number(1)));
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2)));
      case 0x8A:
        return long_integer();
      case 'G':  // a float, of which nothing here depends
        take(8);
        return push_integer(0, Kind::number);
      case 'X':
        return push_text(text(number(4)), Kind::text);
      case 0x8C:
        return push_text(text(number(1)), Kind::text);
      case '}':
        return push_list({}, Kind::dictionary);
      case ']':
        return push_list({}, Kind::list);
      case ')':
        return push_list({}, Kind::tuple);
      case 't':
        return push_list(pop_mark(), Kind::tuple);
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(code - 0x84U);
      case 'a': {
        const Place item = pop();
        return extend({item}, Kind::list);
      }
      case 'e':
        return extend(pop_mark(), Kind::list);
      case 's': {
        const Place value = pop(), key = pop();
        return extend({key, value}, Kind::dictionary);
      }
      case 'u':
        return extend(pop_mark(), Kind::dictionary);
      case 'q':
        return memoize(number(1));
      case 'r':
        return memoize(number(4));
      case 0x94:
        return memoize(memo_.size());
      case 'h':
        return recall(number(1));
      case 'j':
        return recall(number(4));
      case 'c': {
        const std::string module = line();
        return push_name(module + " " + line());
      }
      case 0x93: {
        const std::string name = values_[pop()].text, module = values_[pop()].text;
        return push_name(module + " " + name);
      }
      case 'Q':
        return persistent();
      case 'R':
        return reduce();
      case 'b':  // the state of the dictionary: the versions of its modules
        pop();
        if (values_[top()].kind != Kind::dictionary) refuse("sets the state of something that is no dictionary");
        return;
      default:
        refuse("has the instruction " + std::to_string(code) + ", which is none of a file of tensors");
    }
  }

  Bytes bytes_;
  const std::string& source_;
  std::size_t at_ = 0;
  bool stopped_ = false;
  std::vector<Value> values_;
  std::vector<Place> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, Place> memo_;
};

constexpr std::uint64_t kLongestPickle = std::uint64_t{1} << 23;

}  // namespace

ConstArrayMap index_torch_file(std::span<const std::byte> bytes, const std::string& source) {
  const auto entries = read_zip_directory(bytes, source);
  const auto pickle = std::find_if(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.first == "data.pkl" || entry.first.ends_with("/data.pkl");
  });
  if (pickle == entries.end()) refuse_corrupt("pickle", source + ": the zip file has no entry data.pkl");
  if (pickle->second.size() > kLongestPickle) refuse_corrupt("pickle", source + ": the pickle is too long");
  const std::string folder = pickle->first.substr(0, pickle->first.size() - std::string_view("data.pkl").size());
  if (const auto order = entries.find(folder + "byteorder"); order != entries.end()) {
    const std::string_view word(reinterpret_cast<const char*>(order->second.data()), order->second.size());
    if (word != "little") refuse_corrupt("tensor", source + ": the tensors are not little-endian");
  }
  ConstArrayMap tensors;
  for (const auto& [name, tensor] : PickleReader(pickle->second, source).read()) {
    const auto storage = entries.find(folder + "data/" + tensor.text);
    const std::uint64_t width = dtype_size(tensor.dtype);
    if (storage == entries.end()) refuse_corrupt("tensor", source + ": tensor '" + name + "' has no data in the file");
    if (storage->second.size() / width < static_cast<std::uint64_t>(tensor.elements)) {
      refuse_corrupt("tensor", source + ": tensor '" + name + "' lies beyond its data");
    }
    tensors.emplace(name, ConstArray{tensor.dtype, tensor.shape,
                                     storage->second.data() + static_cast<std::uint64_t>(tensor.integer) * width});
  }
  return tensors;
}

}  // namespace samba
