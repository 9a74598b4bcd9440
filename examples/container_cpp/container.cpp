// A container in C++: a program that is a replica of Luthier, in one file of standard C++17.
//
//     container SOCKET
//
// It speaks version 1 of the replica wire (docs/replica-wire.md) on the Unix socket that it is given, and
// serves a linear classifier: `image` UINT8 [-1, 3, 32, 32] to `scores` FP32 [-1, 10]. The file of LOAD's
// `path` holds the numbers, FP32 and little-endian: 10 rows of 3072 weights, then 10 offsets.
//
// To serve something else: change Model. The rest is the wire. The machine is taken to be little-endian,
// as the wire is.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using Bytes = std::vector<char>;

// ---------------------------------------------------------------- the model

struct Tensor {
    std::string name;
    uint8_t datatype;
    std::vector<int64_t> shape;
    const char* data;
    uint64_t bytes;
};

enum Datatype : uint8_t { UINT8 = 1, FP32 = 10 };

// What a request or an action came to, where it did not succeed: a status of the wire, and a text.
struct Failure : std::runtime_error {
    uint16_t status;
    Failure(uint16_t status, const std::string& text) : std::runtime_error(text), status(status) {}
};

enum Status : uint16_t {
    OK = 0, MODEL_RAISED = 1, INVALID_INPUT = 2, OUT_OF_MEMORY = 4,
    UNKNOWN_MODEL = 10, TOO_LATE = 11, LOAD_FAILED = 41
};

class Model {
public:
    static constexpr int64_t CLASSES = 10;
    static constexpr int64_t FEATURES = 3 * 32 * 32;
    static constexpr const char* SIGNATURE =
        R"({"inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, 3, 32, 32]}],)"
        R"( "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}],)"
        R"( "platform": "cpp"})";

    explicit Model(const std::string& path) : weights_(CLASSES * FEATURES), offsets_(CLASSES) {
        std::ifstream file(path, std::ios::binary);
        if (!file) throw Failure(LOAD_FAILED, "there is no file of weights " + path);
        file.read(reinterpret_cast<char*>(weights_.data()), weights_.size() * sizeof(float));
        file.read(reinterpret_cast<char*>(offsets_.data()), offsets_.size() * sizeof(float));
        if (!file || file.peek() != EOF)
            throw Failure(LOAD_FAILED, path + " is not the size of " + std::to_string(CLASSES) +
                                           " times " + std::to_string(FEATURES) + " weights and as many offsets");
    }

    // How many items a request has. What it holds is checked here: the gateway has done so, another may not.
    static int64_t check(const std::vector<Tensor>& inputs) {
        if (inputs.size() != 1 || inputs[0].name != "image" || inputs[0].datatype != UINT8 ||
            inputs[0].shape.size() != 4 || inputs[0].shape[1] != 3 || inputs[0].shape[2] != 32 ||
            inputs[0].shape[3] != 32 || inputs[0].bytes % FEATURES != 0 ||
            inputs[0].shape[0] != int64_t(inputs[0].bytes / FEATURES))
            throw Failure(INVALID_INPUT, "expected one input, image UINT8 [-1, 3, 32, 32]");
        return inputs[0].shape[0];
    }

    // Scores of the items one after another: the softmax of weights times pixels plus offsets.
    void predict(const unsigned char* pixels, int64_t items, float* scores) const {
        for (int64_t item = 0; item < items; ++item, pixels += FEATURES, scores += CLASSES) {
            for (int64_t c = 0; c < CLASSES; ++c) {
                const float* row = &weights_[c * FEATURES];
                double sum = offsets_[c];
                for (int64_t f = 0; f < FEATURES; ++f) sum += double(row[f]) * pixels[f];
                scores[c] = float(sum);
            }
            const float highest = *std::max_element(scores, scores + CLASSES);
            float total = 0;
            for (int64_t c = 0; c < CLASSES; ++c) total += scores[c] = std::exp(scores[c] - highest);
            for (int64_t c = 0; c < CLASSES; ++c) scores[c] /= total;
        }
    }

private:
    std::vector<float> weights_, offsets_;
};

// ---------------------------------------------------------------- reading and writing bytes

struct Garbage : std::runtime_error {  // what came is not the wire: the connection is of no more use
    using std::runtime_error::runtime_error;
};

// Reads numbers from a piece of memory and never past its end.
class Reader {
public:
    Reader(const char* data, size_t bytes) : at_(data), end_(data + bytes) {}

    template <typename Number>
    Number number() {
        Number value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    const char* take(uint64_t bytes) {
        if (bytes > uint64_t(end_ - at_)) throw Garbage("a message is cut short");
        const char* start = at_;
        at_ += bytes;
        return start;
    }
    size_t left() const { return size_t(end_ - at_); }
    std::string rest() { return std::string(std::exchange(at_, end_), end_); }

private:
    const char *at_, *end_;
};

template <typename Number>
void put(Bytes& bytes, Number value) {
    const char* raw = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), raw, raw + sizeof value);
}

void put(Bytes& bytes, const std::string& text) { bytes.insert(bytes.end(), text.begin(), text.end()); }

std::string quoted(const std::string& text) {  // as a text of JSON
    std::string out = "\"";
    for (unsigned char c : text) {
        char escape[8];
        if (c == '"' || c == '\\') (out += '\\') += char(c);
        else if (c < 0x20) std::snprintf(escape, sizeof escape, "\\u%04x", c), out += escape;
        else out += char(c);
    }
    return out + '"';
}

// The members of a JSON object, each as its own text: enough for LOAD, whose values are numbers and texts.
class Json {
public:
    explicit Json(std::string text) : text_(std::move(text)) {
        expect('{');
        if (peek() == '}') return;
        do {
            const std::string name = string();
            expect(':');
            peek();  // leaves the blanks behind
            const size_t start = at_;
            skip();
            members_[name] = text_.substr(start, at_ - start);
        } while (next() == ',');
    }

    uint32_t whole(const std::string& name) const { return uint32_t(std::stoul(member(name))); }

    std::optional<std::string> optional_string(const std::string& name) const {
        const std::string raw = member(name);
        if (raw == "null") return std::nullopt;
        return Json(raw, 0).string();
    }

private:
    Json(std::string text, size_t at) : text_(std::move(text)), at_(at) {}

    std::string member(const std::string& name) const {
        const auto found = members_.find(name);
        if (found == members_.end()) throw Garbage("LOAD lacks " + name);
        return found->second;
    }
    char peek() {
        while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_])) ++at_;
        if (at_ >= text_.size()) throw Garbage("JSON is cut short");
        return text_[at_];
    }
    char next() { const char c = peek(); ++at_; return c; }
    void expect(char wanted) { if (next() != wanted) throw Garbage("JSON is malformed"); }

    void skip() {  // any value
        if (peek() == '"') { string(); return; }
        if (text_[at_] != '{' && text_[at_] != '[') {
            at_ = std::min(text_.find_first_of(",}] \t\r\n", at_), text_.size());
            return;
        }
        int depth = 0;
        do {
            const char c = peek();
            if (c == '"') { string(); continue; }
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            ++at_;
        } while (depth > 0);
    }

    std::string string() {
        expect('"');
        std::string out;
        while (true) {
            char c = raw();
            if (c == '"') return out;
            if (c != '\\') { out += c; continue; }
            c = raw();
            if (c == 'u') append_utf8(out, code_point());
            else out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c;
        }
    }
    char raw() {
        if (at_ >= text_.size()) throw Garbage("JSON is cut short");
        return text_[at_++];
    }
    uint32_t four_digits() {
        uint32_t value = 0;
        for (int i = 0; i < 4; ++i) value = value * 16 + uint32_t(std::stoul(std::string(1, raw()), nullptr, 16));
        return value;
    }
    uint32_t code_point() {
        const uint32_t first = four_digits();
        if (first < 0xD800 || first > 0xDBFF) return first;
        if (raw() != '\\' || raw() != 'u') throw Garbage("JSON has half a character");
        return 0x10000 + ((first - 0xD800) << 10) + (four_digits() - 0xDC00);
    }
    static void append_utf8(std::string& out, uint32_t code) {
        if (code < 0x80) { out += char(code); return; }
        if (code < 0x800) out += char(0xC0 | code >> 6);
        else {
            if (code < 0x10000) out += char(0xE0 | code >> 12);
            else (out += char(0xF0 | code >> 18)) += char(0x80 | (code >> 12 & 0x3F));
            out += char(0x80 | (code >> 6 & 0x3F));
        }
        out += char(0x80 | (code & 0x3F));
    }

    std::string text_;
    size_t at_ = 0;
    std::map<std::string, std::string> members_;
};

// ---------------------------------------------------------------- the wire

enum Message : uint8_t { HELLO = 1, LOAD, LOADED, UNLOAD, UNLOADED, INFER, RESULT };

constexpr uint8_t VERSION = 1;
constexpr uint32_t LONGEST_BODY = 1u << 30;
constexpr uint16_t TENSORS = 0;  // the one encoding that is read here, for HELLO does not promise `json`

int64_t now_ns() {  // CLOCK_MONOTONIC, which gateway and replicas share
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// When an action starts: waits for the opening of its window; none where that has closed.
std::optional<int64_t> start(int64_t earliest_ns, int64_t latest_ns) {
    int64_t now = now_ns();
    while (earliest_ns > now && !(latest_ns && now > latest_ns)) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(earliest_ns - now));
        now = now_ns();
    }
    if (latest_ns && now > latest_ns) return std::nullopt;
    return now;
}

std::vector<Tensor> tensors_of(const char* frame, size_t bytes) {
    Reader reader(frame, bytes);
    const uint32_t length = reader.number<uint32_t>();
    Reader descriptor(reader.take(length), length);
    std::vector<Tensor> tensors(descriptor.number<uint16_t>());
    for (Tensor& tensor : tensors) {
        tensor.datatype = descriptor.number<uint8_t>();
        tensor.shape.resize(descriptor.number<uint8_t>());
        const uint16_t name_bytes = descriptor.number<uint16_t>();
        tensor.bytes = descriptor.number<uint64_t>();
        for (int64_t& size : tensor.shape) size = descriptor.number<int64_t>();
        tensor.name.assign(descriptor.take(name_bytes), name_bytes);
    }
    for (Tensor& tensor : tensors) tensor.data = reader.take(tensor.bytes);
    return tensors;
}

void put_scores(Bytes& out, const float* scores, int64_t items) {
    const std::string name = "scores";
    const uint64_t bytes = uint64_t(items) * Model::CLASSES * sizeof(float);
    put(out, uint32_t(2 + 12 + 2 * 8 + name.size()));  // the descriptor: count, head, shape, name
    put(out, uint16_t(1));
    put(out, uint8_t(FP32));
    put(out, uint8_t(2));
    put(out, uint16_t(name.size()));
    put(out, bytes);
    put(out, items);
    put(out, Model::CLASSES);
    put(out, name);
    const char* raw = reinterpret_cast<const char*>(scores);
    out.insert(out.end(), raw, raw + bytes);
}

class Replica {
public:
    explicit Replica(int socket) : socket_(socket) {}

    void run() {
        Bytes hello;
        put(hello, R"({"wire": 1, "pid": )" + std::to_string(getpid()) +
                       R"(, "features": ["stage-times", "windows"], "monotonic_ns": )" + std::to_string(now_ns()) + "}");
        send(HELLO, hello);
        char head[8];
        while (receive(head, sizeof head)) {
            Reader reader(head, sizeof head);
            const std::string magic(reader.take(2), 2);
            const auto version = reader.number<uint8_t>();
            const auto type = reader.number<uint8_t>();
            const auto length = reader.number<uint32_t>();
            if (magic != "LW" || version != VERSION || length > LONGEST_BODY) throw Garbage("this is not the wire");
            Bytes body(length);
            if (length && !receive(body.data(), length)) throw std::runtime_error("the gateway is gone");
            act(type, Reader(body.data(), length));
        }
    }

private:
    struct Request {
        uint16_t status = OK;
        std::string text;
        int64_t first = 0, items = 0;  // its place in the batch
    };

    void act(uint8_t type, Reader body) {
        if (type == LOAD) load(body);
        else if (type == UNLOAD) unload(body);
        else if (type == INFER) infer(body);
        else throw Garbage("a message that a replica does not take");
    }

    void load(Reader body) {
        const auto action = body.number<uint64_t>();
        const auto earliest = body.number<int64_t>(), latest = body.number<int64_t>();
        const Json wanted(body.rest());
        const std::optional<int64_t> began = start(earliest, latest);
        try {
            if (!began) throw Failure(TOO_LATE, "the action's window had closed");
            const auto path = wanted.optional_string("path");
            if (!path) throw Failure(LOAD_FAILED, "it needs a file of weights: `file` in model.yaml");
            models_.insert_or_assign(wanted.whole("model"), Model(*path));
            const double seconds = double(now_ns() - *began) * 1e-9;
            answer(LOADED, action, OK,
                   std::string(R"({"signature": )") + Model::SIGNATURE + R"(, "load_s": )" + std::to_string(seconds) + "}");
        } catch (const Failure& failure) {
            answer(LOADED, action, failure.status, R"({"error": )" + quoted(failure.what()) + "}");
        }
    }

    void unload(Reader body) {
        const auto action = body.number<uint64_t>();
        const auto earliest = body.number<int64_t>(), latest = body.number<int64_t>();
        const auto model = body.number<uint32_t>();
        if (!start(earliest, latest))
            answer(UNLOADED, action, TOO_LATE, R"({"error": "the action's window had closed"})");
        else if (!models_.erase(model))
            answer(UNLOADED, action, UNKNOWN_MODEL, R"({"error": "no model of that number is loaded"})");
        else
            answer(UNLOADED, action, OK, "{}");
    }

    void infer(Reader body) {
        const auto action = body.number<uint64_t>();
        const auto model = models_.find(body.number<uint32_t>());
        const auto earliest = body.number<int64_t>(), latest = body.number<int64_t>();
        const auto count = body.number<uint32_t>();
        Reader entries(body.take(uint64_t(count) * 16), size_t(count) * 16);
        std::vector<Request> requests(count);
        const std::optional<int64_t> began = start(earliest, latest);
        if (model == models_.end() || !began) {
            for (Request& request : requests) {
                request.status = began ? UNKNOWN_MODEL : TOO_LATE;
                request.text = began ? "no model of that number is loaded" : "the action's window had closed";
            }
            result(action, requests, {}, 0, 0, 0, 0);
            return;
        }
        // Inputs: every request's items, one after another. One that cannot be read fails alone.
        std::vector<unsigned char> pixels;
        std::vector<float> scores;
        int64_t items = 0;
        for (Request& request : requests) {
            const auto bytes = entries.number<uint32_t>();
            const auto encoding = entries.number<uint16_t>();
            entries.number<uint16_t>();
            const int64_t from = entries.number<uint32_t>(), to = entries.number<uint32_t>();
            const char* frame = body.take(bytes);
            try {
                if (encoding != TENSORS) throw Failure(INVALID_INPUT, "only the tensors encoding is read here");
                const std::vector<Tensor> inputs = tensors_of(frame, bytes);
                int64_t first = 0, end = Model::check(inputs);
                if (to) {
                    if (from >= to || to > end) throw Failure(INVALID_INPUT, "the request has fewer items");
                    first = from, end = to;
                }
                const char* data = inputs[0].data;
                pixels.insert(pixels.end(), data + first * Model::FEATURES, data + end * Model::FEATURES);
                request.first = items;
                request.items = end - first;
                items += request.items;
            } catch (const Failure& failure) {
                request.status = failure.status;
                request.text = failure.what();
            } catch (const Garbage& garbage) {  // inside a frame it is that request's fault alone
                request.status = INVALID_INPUT;
                request.text = garbage.what();
            } catch (const std::bad_alloc&) {
                request.status = OUT_OF_MEMORY;
                request.text = "no memory for the batch";
            }
        }
        const int64_t called = now_ns();
        try {
            scores.resize(size_t(items) * Model::CLASSES);
            model->second.predict(pixels.data(), items, scores.data());
        } catch (const std::exception& error) {
            const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
            for (Request& request : requests)
                if (request.status == OK) {
                    request.status = is_memory ? OUT_OF_MEMORY : MODEL_RAISED;
                    request.text = error.what();
                }
        }
        const int64_t returned = now_ns();
        result(action, requests, scores, *began, called - *began, returned - called, returned);
    }

    void result(uint64_t action, const std::vector<Request>& requests, const std::vector<float>& scores,
                int64_t began, int64_t input_ns, int64_t exec_ns, int64_t returned) {
        Bytes entries, frames;
        bool any = requests.empty();
        for (const Request& request : requests) {
            const size_t before = frames.size();
            if (request.status == OK) put_scores(frames, scores.data() + request.first * Model::CLASSES, request.items);
            else put(frames, request.text);
            any = any || request.status == OK;
            put(entries, uint32_t(frames.size() - before));
            put(entries, request.status);
            put(entries, uint16_t(0));
        }
        Bytes body;
        put(body, action);
        put(body, any ? uint16_t(OK) : requests.front().status);
        put(body, uint16_t(0));
        put(body, began);
        put(body, uint64_t(input_ns));
        put(body, uint64_t(exec_ns));
        put(body, uint64_t(returned ? now_ns() - returned : 0));
        put(body, uint32_t(requests.size()));
        body.insert(body.end(), entries.begin(), entries.end());
        body.insert(body.end(), frames.begin(), frames.end());
        send(RESULT, body);
    }

    void answer(uint8_t type, uint64_t action, uint16_t status, const std::string& json) {
        Bytes body;
        put(body, action);
        put(body, status);
        put(body, uint16_t(0));
        put(body, json);
        send(type, body);
    }

    void send(uint8_t type, const Bytes& body) {
        Bytes message;
        put(message, std::string("LW"));
        put(message, VERSION);
        put(message, type);
        put(message, uint32_t(body.size()));
        message.insert(message.end(), body.begin(), body.end());
        for (size_t sent = 0; sent < message.size();) {
            const ssize_t count = ::send(socket_, message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) throw std::runtime_error("the gateway is gone");
            sent += size_t(count);
        }
    }

    bool receive(char* data, size_t bytes) {  // false: the stream ended before the first byte
        for (size_t got = 0; got < bytes;) {
            const ssize_t count = ::recv(socket_, data + got, bytes - got, 0);
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0 && got == 0) return false;
            if (count <= 0) throw std::runtime_error("the gateway is gone");
            got += size_t(count);
        }
        return true;
    }

    int socket_;
    std::map<uint32_t, Model> models_;
};

int main(int count, char** words) {
    if (count != 2) {
        std::fprintf(stderr, "usage: container SOCKET; see README.md\n");
        return 64;
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, words[1], sizeof address.sun_path - 1);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (socket < 0 || connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        std::perror("container: cannot connect to the gateway");
        return 69;
    }
    try {
        Replica(socket).run();
    } catch (const Garbage& garbage) {
        std::fprintf(stderr, "container: %s\n", garbage.what());
        return 65;
    } catch (const std::runtime_error&) {
        return 0;  // the gateway has closed the stream, inside a message
    } catch (const std::exception& error) {
        std::fprintf(stderr, "container: %s\n", error.what());
        return 70;
    }
    return 0;
}
