#include "runtime/interchange/torch_pickle.h"

#include <cstring>
#include <unordered_map>

#include <fmt/format.h>

#include "common/error.h"
#include "common/text.h"

namespace mtl {

namespace {

// Tensors lie beside the pickle: what is in it is small. The limits keep its values, which take
// more memory than their bytes, in bounds.
constexpr size_t kMostBytes = size_t{16} << 20;
constexpr size_t kMostValues = size_t{2} << 20;

constexpr const char* kConvert =
    "load it with the program that wrote it and save it as safetensors";

}  // namespace

class PickleReader {
 public:
  PickleReader(Pickle& pickle, std::string_view bytes, const std::string& file)
      : pickle_(pickle), bytes_(bytes), file_(file) {}

  void run() {
    if (bytes_.size() > kMostBytes) fail("a pickle of more than 16 MiB beside its tensors");
    while (true) {
      opcode_at_ = at_;
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') break;
      step(opcode);
    }
    pickle_.root_ = pop();
  }

 private:
  using Id = Pickle::Id;
  using Kind = Pickle::Kind;
  using Value = Pickle::Value;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Exit::data,
                {.code = "import.pickle",
                 .what = fmt::format("{}: at byte {} of its pickle: {}", file_, opcode_at_, what),
                 .help = kConvert});
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) fail("it ends too early");
    const std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("a line without an end");
    const std::string_view text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  Id add(Value value) {
    if (pickle_.values_.size() >= kMostValues) fail("more than two million values");
    pickle_.values_.push_back(std::move(value));
    return static_cast<Id>(pickle_.values_.size() - 1);
  }
  void push(Id id) { stack_.push_back(id); }
  void push(Value value) { push(add(std::move(value))); }
  void push(Kind kind, std::string_view text) {
    Value value;
    value.kind = kind;
    value.text = text;
    push(std::move(value));
  }
  void push(Kind kind, std::vector<Id> items) {
    Value value;
    value.kind = kind;
    value.items = std::move(items);
    push(std::move(value));
  }
  void push_integer(Kind kind, int64_t integer) {
    Value value;
    value.kind = kind;
    value.integer = integer;
    push(std::move(value));
  }
  // Above the newest mark only.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Id pop() {
    if (stack_.size() <= floor()) fail("its stack is empty");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Id top() const {
    if (stack_.size() <= floor()) fail("its stack is empty");
    return stack_.back();
  }
  std::vector<Id> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    std::vector<Id> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  std::vector<Id> pop_tuple(size_t count) {
    std::vector<Id> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }
  Value& value(Id id) { return pickle_.values_[id]; }

  void append(Id container, const std::vector<Id>& items) {
    Value& target = value(container);
    // `append` and `extend` of anything else would be a call.
    if (target.kind != Kind::list && target.kind != Kind::set) return;
    grow(items.size());
    target.items.insert(target.items.end(), items.begin(), items.end());
  }
  void set_items(Id container, const std::vector<Id>& items) {
    if (items.size() % 2 != 0) fail("a key without a value");
    Value& target = value(container);
    // An OrderedDict is a call, whose items count as its own.
    if (target.kind != Kind::dict) return;
    grow(items.size());
    target.items.insert(target.items.end(), items.begin(), items.end());
  }
  // Each item costs a byte or more of the file, but may be written again and again by DUP and GET.
  void grow(size_t count) {
    references_ += count;
    if (references_ > kMostValues * 4) fail("too many references");
  }
  void push_global(std::string_view module, std::string_view name) {
    Value text;
    text.kind = Kind::text;
    text.text = name;
    Value global;
    global.kind = Kind::global;
    global.text = module;
    global.items = {add(std::move(text))};
    push(std::move(global));
  }
  void push_call(Id callable, Id arguments) {
    // Calls that only make a container, and a class that is one: as data.
    const std::string name = pickle_.global_name(callable);
    if (name == "collections.OrderedDict" || name == "collections.defaultdict") {
      std::vector<Id> items;
      const Value& given = value(arguments);
      // OrderedDict([(k, v), ...]), as protocol 0 and 1 wrote it.
      if (given.items.size() == 1 && value(given.items[0]).kind == Kind::list) {
        for (const Id pair : value(given.items[0]).items) {
          if (value(pair).items.size() != 2) fail("an OrderedDict of other things than pairs");
          items.insert(items.end(), value(pair).items.begin(), value(pair).items.end());
        }
      }
      grow(items.size());
      return push(Kind::dict, std::move(items));
    }
    if (name == "torch.Size") {
      const Value& given = value(arguments);
      if (given.items.size() == 1) return push(given.items[0]);
    }
    push(Kind::call, {callable, arguments});
  }

  void push_long(std::string_view digits) {
    if (digits.size() > 8) {
      // A number of more than 64 bits is nobody's size: a random generator's state.
      return push(Kind::bytes, digits);
    }
    uint64_t bits = 0;
    std::memcpy(&bits, digits.data(), digits.size());
    if (!digits.empty() && digits.size() < 8 && (digits.back() & 0x80) != 0) {
      bits |= ~uint64_t{0} << (8 * digits.size());
    }
    push_integer(Kind::integer, static_cast<int64_t>(bits));
  }
  // "I01\n" and "I00\n" are booleans; "L5L\n" ends in L.
  void push_decimal(std::string_view text, bool may_be_boolean) {
    if (may_be_boolean && (text == "01" || text == "00")) {
      return push_integer(Kind::boolean, text == "01");
    }
    if (text.ends_with('L')) text.remove_suffix(1);
    const auto integer = to_number<int64_t>(text);
    if (!integer) fail("a number that is none");
    push_integer(Kind::integer, *integer);
  }

  void memoize(uint64_t key) {
    if (memo_.size() >= kMostValues) fail("too many references");
    memo_[key] = top();
  }
  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("a reference to nothing");
    push(found->second);
  }
  uint64_t decimal_key() {
    const auto key = to_number<uint64_t>(line());
    if (!key) fail("a number that is none");
    return *key;
  }

  void step(unsigned char opcode);

  Pickle& pickle_;
  const std::string_view bytes_;
  const std::string& file_;
  size_t at_ = 0, opcode_at_ = 0;
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Id> memo_;
  size_t references_ = 0;
};

void PickleReader::step(unsigned char opcode) {
  switch (opcode) {
    case 0x80:  // PROTO
      if (number<uint8_t>() > 5) fail("protocols up to 5 are known");
      return;
    case 0x95:  // FRAME
      take(8);
      return;
    case '(':
      marks_.push_back(stack_.size());
      return;
    case '0':  // POP, which may take a mark
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return;
    case '1':
      pop_to_mark();
      return;
    case '2':
      push(top());
      return;
    case 'N':
      return push(Value{});
    case 0x88:
      return push_integer(Kind::boolean, 1);
    case 0x89:
      return push_integer(Kind::boolean, 0);
    case 'I':
      return push_decimal(line(), true);
    case 'L':
      return push_decimal(line(), false);
    case 'J':
      return push_integer(Kind::integer, number<int32_t>());
    case 'K':
      return push_integer(Kind::integer, number<uint8_t>());
    case 'M':
      return push_integer(Kind::integer, number<uint16_t>());
    case 0x8a:
      return push_long(take(number<uint8_t>()));
    case 0x8b: {
      const auto length = number<int32_t>();
      if (length < 0) fail("a negative length");
      return push_long(take(static_cast<uint64_t>(length)));
    }
    case 'G': {  // big-endian
      Value real;
      real.kind = Kind::real;
      const uint64_t bits = __builtin_bswap64(number<uint64_t>());
      real.number = __builtin_bit_cast(double, bits);
      return push(std::move(real));
    }
    case 'X':
      return push(Kind::text, take(number<uint32_t>()));
    case 0x8c:
      return push(Kind::text, take(number<uint8_t>()));
    case 0x8d:
      return push(Kind::text, take(number<uint64_t>()));
    case 'T':  // Python 2's strings, which are bytes or text as one likes
      return push(Kind::text, take(number<uint32_t>()));
    case 'U':
      return push(Kind::text, take(number<uint8_t>()));
    case 'B':
      return push(Kind::bytes, take(number<uint32_t>()));
    case 'C':
      return push(Kind::bytes, take(number<uint8_t>()));
    case 0x8e:
    case 0x96:
      return push(Kind::bytes, take(number<uint64_t>()));
    case ']':
      return push(Kind::list, std::vector<Id>{});
    case ')':
      return push(Kind::tuple, std::vector<Id>{});
    case '}':
      return push(Kind::dict, std::vector<Id>{});
    case 0x8f:
      return push(Kind::set, std::vector<Id>{});
    case 'l':
      return push(Kind::list, pop_to_mark());
    case 't':
      return push(Kind::tuple, pop_to_mark());
    case 0x91:
      return push(Kind::set, pop_to_mark());
    case 0x85:
      return push(Kind::tuple, pop_tuple(1));
    case 0x86:
      return push(Kind::tuple, pop_tuple(2));
    case 0x87:
      return push(Kind::tuple, pop_tuple(3));
    case 'd': {
      const std::vector<Id> items = pop_to_mark();
      if (items.size() % 2 != 0) fail("a key without a value");
      return push(Kind::dict, items);
    }
    case 'a': {
      const Id item = pop();
      return append(top(), {item});
    }
    case 'e':
    case 0x90: {
      const std::vector<Id> items = pop_to_mark();
      return append(top(), items);
    }
    case 's': {
      const std::vector<Id> items = pop_tuple(2);
      return set_items(top(), items);
    }
    case 'u': {
      const std::vector<Id> items = pop_to_mark();
      return set_items(top(), items);
    }
    case 'p':
      return memoize(decimal_key());
    case 'q':
      return memoize(number<uint8_t>());
    case 'r':
      return memoize(number<uint32_t>());
    case 0x94:
      return memoize(memo_.size());
    case 'g':
      return recall(decimal_key());
    case 'h':
      return recall(number<uint8_t>());
    case 'j':
      return recall(number<uint32_t>());
    case 'c': {
      const std::string_view module = line();
      return push_global(module, line());
    }
    case 0x93: {
      const Id name = pop(), module = pop();
      if (value(name).kind != Kind::text || value(module).kind != Kind::text) {
        fail("a global whose name is no text");
      }
      return push_global(value(module).text, value(name).text);
    }
    case 'R':
    case 0x81: {  // NEWOBJ: cls.__new__(cls, *args)
      const Id arguments = pop(), callable = pop();
      if (value(arguments).kind != Kind::tuple) fail("arguments that are no tuple");
      return push_call(callable, arguments);
    }
    case 0x92: {  // NEWOBJ_EX
      pop();
      const Id arguments = pop(), callable = pop();
      return push_call(callable, arguments);
    }
    case 'b': {  // BUILD: remembered as the state of the object
      const Id state = pop();
      Value& object = value(top());
      if (object.kind == Kind::call && object.items.size() == 2) object.items.push_back(state);
      return;
    }
    case 'Q': {
      const Id id = pop();
      return push(Kind::persistent, std::vector<Id>{id});
    }
    default:
      fail(fmt::format("opcode 0x{:02x}, which torch.save does not write", opcode));
  }
}

Pickle::Pickle(std::string_view bytes, const std::string& file) {
  PickleReader(*this, bytes, file).run();
}

std::string Pickle::global_name(Id id) const {
  const Value& value = values_[id];
  if (value.kind != Kind::global) return "";
  return std::string(value.text) + "." + std::string(values_[value.items[0]].text);
}

const Pickle::Value* Pickle::find(const Value& dict, std::string_view key) const {
  if (dict.kind != Kind::dict) return nullptr;
  for (size_t i = dict.items.size(); i >= 2; i -= 2) {
    const Value& name = values_[dict.items[i - 2]];
    if (name.kind == Kind::text && name.text == key) return &values_[dict.items[i - 1]];
  }
  return nullptr;
}

}  // namespace mtl
