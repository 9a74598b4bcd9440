// A container in Java: a program that is a replica of Luthier, in one file of standard Java 17.
//
//     java Container SOCKET
//
// It speaks version 1 of the replica wire (docs/replica-wire.md) on the Unix socket that it is given, and
// serves a linear classifier: `image` UINT8 [-1, 3, 32, 32] to `scores` FP32 [-1, 10]. The file of LOAD's
// `path` holds the numbers, FP32 and little-endian: 10 rows of 3072 weights, then 10 offsets.
//
// To serve something else: change Model. The rest is the wire.

import java.io.EOFException;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

public final class Container {

    // ------------------------------------------------------------ the model

    static final class Model {
        static final int CLASSES = 10;
        static final int FEATURES = 3 * 32 * 32;
        static final String SIGNATURE = """
            {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, 3, 32, 32]}],
             "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}],
             "platform": "java"}""";

        private final float[] weights = new float[CLASSES * FEATURES];
        private final float[] offsets = new float[CLASSES];

        Model(Path path) throws Failure {
            byte[] bytes;
            try {
                bytes = Files.readAllBytes(path);
            } catch (IOException error) {
                throw new Failure(LOAD_FAILED, "the file of weights cannot be read: " + error);
            }
            if (bytes.length != 4 * (weights.length + offsets.length)) {
                throw new Failure(LOAD_FAILED, path + " has " + bytes.length + " bytes, expected "
                    + 4 * (weights.length + offsets.length));
            }
            var numbers = little(bytes).asFloatBuffer();
            numbers.get(weights).get(offsets);
        }

        /** How many items a request has; what it holds is checked here. */
        static int check(List<Tensor> inputs) throws Failure {
            boolean fits = inputs.size() == 1;
            if (fits) {
                Tensor image = inputs.get(0);
                long[] shape = image.shape;
                fits = image.name.equals("image") && image.datatype == UINT8 && shape.length == 4
                    && shape[1] == 3 && shape[2] == 32 && shape[3] == 32
                    && image.data.remaining() % FEATURES == 0 && shape[0] == image.data.remaining() / FEATURES;
            }
            if (!fits) {
                throw new Failure(INVALID_INPUT, "expected one input, image UINT8 [-1, 3, 32, 32]");
            }
            return (int) inputs.get(0).shape[0];
        }

        /** Scores of the items one after another: the softmax of weights times pixels plus offsets. */
        float[] predict(byte[] pixels) {
            int items = pixels.length / FEATURES;
            float[] scores = new float[items * CLASSES];
            for (int item = 0; item < items; item++) {
                double[] sums = new double[CLASSES];
                double highest = Double.NEGATIVE_INFINITY;
                for (int c = 0; c < CLASSES; c++) {
                    double sum = offsets[c];
                    for (int f = 0; f < FEATURES; f++) {
                        sum += (double) weights[c * FEATURES + f] * (pixels[item * FEATURES + f] & 0xFF);
                    }
                    sums[c] = sum;
                    highest = Math.max(highest, sum);
                }
                double total = 0;
                for (int c = 0; c < CLASSES; c++) {
                    total += sums[c] = Math.exp(sums[c] - highest);
                }
                for (int c = 0; c < CLASSES; c++) {
                    scores[item * CLASSES + c] = (float) (sums[c] / total);
                }
            }
            return scores;
        }
    }

    // ------------------------------------------------------------ the wire

    static final int HELLO = 1, LOAD = 2, LOADED = 3, UNLOAD = 4, UNLOADED = 5, INFER = 6, RESULT = 7;
    static final int OK = 0, MODEL_RAISED = 1, INVALID_INPUT = 2, OUT_OF_MEMORY = 4;
    static final int UNKNOWN_MODEL = 10, TOO_LATE = 11, LOAD_FAILED = 41;
    static final int UINT8 = 1, FP32 = 10;
    static final int VERSION = 1;
    static final int LONGEST_BODY = 1 << 30;
    /** The one encoding that is read here, for HELLO does not promise `json`. */
    static final int TENSORS = 0;
    static final String CLOSED = "the action's window had closed";
    static final String UNKNOWN = "no model of that number is loaded";

    record Tensor(String name, int datatype, long[] shape, ByteBuffer data) {}

    /** What a request or an action came to, where it did not succeed. */
    static final class Failure extends Exception {
        final int status;

        Failure(int status, String text) {
            super(text);
            this.status = status;
        }
    }

    /** What came is not the wire: the connection is of no more use. */
    static final class Garbage extends RuntimeException {
        Garbage(String text) {
            super(text);
        }
    }

    private final SocketChannel channel;
    private final Map<Integer, Model> models = new HashMap<>();

    Container(SocketChannel channel) {
        this.channel = channel;
    }

    void run() throws IOException {
        send(HELLO, utf8("{\"wire\": 1, \"pid\": " + ProcessHandle.current().pid()
            + ", \"features\": [\"stage-times\", \"windows\"], \"monotonic_ns\": " + now() + "}"));
        ByteBuffer head;
        while ((head = receive(8)) != null) {
            boolean known = head.get() == 'L' && head.get() == 'W' && head.get() == VERSION;
            int type = head.get();
            int length = head.getInt();
            if (!known || length < 0 || length > LONGEST_BODY) {
                throw new Garbage("this is not the wire");
            }
            ByteBuffer body = receive(length);
            if (body == null) {
                return;
            }
            try {
                switch (type) {
                    case LOAD -> load(body);
                    case UNLOAD -> unload(body);
                    case INFER -> infer(body);
                    default -> throw new Garbage("a message that a replica does not take: " + type);
                }
            } catch (BufferUnderflowException | ArithmeticException error) {
                throw new Garbage("a message is cut short");
            }
        }
    }

    private void load(ByteBuffer body) throws IOException {
        long action = body.getLong();
        boolean inTime = start(body.getLong(), body.getLong());
        Map<String, Object> wanted = Json.object(StandardCharsets.UTF_8.decode(body).toString());
        try {
            if (!inTime) {
                throw new Failure(TOO_LATE, CLOSED);
            }
            if (!(wanted.get("path") instanceof String path)) {
                throw new Failure(LOAD_FAILED, "it needs a file of weights: `file` in model.yaml");
            }
            long began = now();
            models.put(((Number) wanted.get("model")).intValue(), new Model(Path.of(path)));
            answer(LOADED, action, OK, "{\"signature\": " + Model.SIGNATURE + ", \"load_s\": " + (now() - began) * 1e-9 + "}");
        } catch (Failure failure) {
            answer(LOADED, action, failure.status, error(failure.getMessage()));
        }
    }

    private void unload(ByteBuffer body) throws IOException {
        long action = body.getLong();
        boolean inTime = start(body.getLong(), body.getLong());
        if (!inTime) {
            answer(UNLOADED, action, TOO_LATE, error(CLOSED));
        } else if (models.remove(body.getInt()) == null) {
            answer(UNLOADED, action, UNKNOWN_MODEL, error(UNKNOWN));
        } else {
            answer(UNLOADED, action, OK, "{}");
        }
    }

    /** One request of a batch: its place among the items, or why it has none. */
    private static final class Request {
        int status = OK;
        String text = "";
        int first;
        int items;

        void fail(int status, String text) {
            this.status = status;
            this.text = text == null ? "" : text;
        }
    }

    private void infer(ByteBuffer body) throws IOException {
        long action = body.getLong();
        Model model = models.get(body.getInt());
        boolean inTime = start(body.getLong(), body.getLong());
        long began = now();
        int count = body.getInt();
        ByteBuffer entries = part(body, Math.multiplyExact(count, 16));
        List<Request> requests = new ArrayList<>();
        List<ByteBuffer> pieces = new ArrayList<>();
        int items = 0;
        for (int i = 0; i < count; i++) {
            var request = new Request();
            requests.add(request);
            int length = entries.getInt();
            int encoding = entries.getShort();
            entries.getShort();
            int from = entries.getInt(), to = entries.getInt();
            ByteBuffer frame = part(body, length);
            if (model == null || !inTime) {
                request.fail(inTime ? UNKNOWN_MODEL : TOO_LATE, inTime ? UNKNOWN : CLOSED);
                continue;
            }
            try {  // one that cannot be read fails alone
                if (encoding != TENSORS) {
                    throw new Failure(INVALID_INPUT, "only the tensors encoding is read here");
                }
                List<Tensor> inputs = tensors(frame);
                int first = 0, end = Model.check(inputs);
                if (to != 0) {
                    if (from < 0 || from >= to || to > end) {
                        throw new Failure(INVALID_INPUT, "the request has fewer items");
                    }
                    first = from;
                    end = to;
                }
                pieces.add(inputs.get(0).data.slice(first * Model.FEATURES, (end - first) * Model.FEATURES));
                request.first = items;
                request.items = end - first;
                items += request.items;
            } catch (Failure failure) {
                request.fail(failure.status, failure.getMessage());
            } catch (BufferUnderflowException | IllegalArgumentException error) {
                request.fail(INVALID_INPUT, "the frame is cut short");
            }
        }
        float[] scores = {};
        long called = now();
        try {
            byte[] pixels = new byte[Math.multiplyExact(items, Model.FEATURES)];
            int at = 0;
            for (ByteBuffer piece : pieces) {
                int size = piece.remaining();
                piece.get(pixels, at, size);
                at += size;
            }
            called = now();
            if (items > 0) {
                scores = model.predict(pixels);
            }
        } catch (OutOfMemoryError | RuntimeException error) {
            int status = error instanceof OutOfMemoryError ? OUT_OF_MEMORY : MODEL_RAISED;
            requests.stream().filter(request -> request.status == OK).forEach(request -> request.fail(status, error.toString()));
        }
        result(action, requests, scores, began, called, now());
    }

    private void result(long action, List<Request> requests, float[] scores, long began, long called, long returned)
            throws IOException {
        ByteBuffer entries = little(new byte[8 * requests.size()]);
        List<byte[]> frames = new ArrayList<>();
        int total = 0;
        int status = requests.isEmpty() ? OK : requests.get(0).status;
        for (Request request : requests) {
            byte[] frame = request.status == OK ? frame(scores, request.first, request.items) : utf8(request.text);
            frames.add(frame);
            total += frame.length;
            entries.putInt(frame.length).putShort((short) request.status).putShort((short) 0);
            status = request.status == OK ? OK : status;
        }
        ByteBuffer body = little(new byte[48 + entries.capacity() + total]);
        body.putLong(action).putShort((short) status).putShort((short) 0);
        body.putLong(began).putLong(called - began).putLong(returned - called).putLong(now() - returned);
        body.putInt(requests.size()).put(entries.array());
        frames.forEach(body::put);
        send(RESULT, body.array());
    }

    /** The output `scores` of some items: the descriptor, then the data. */
    private static byte[] frame(float[] scores, int first, int items) {
        byte[] name = utf8("scores");
        int values = items * Model.CLASSES;
        int descriptor = 2 + 12 + 2 * 8 + name.length;
        ByteBuffer frame = little(new byte[4 + descriptor + 4 * values]);
        frame.putInt(descriptor).putShort((short) 1);
        frame.put((byte) FP32).put((byte) 2).putShort((short) name.length).putLong(4L * values);
        frame.putLong(items).putLong(Model.CLASSES).put(name);
        frame.asFloatBuffer().put(scores, first * Model.CLASSES, values);
        return frame.array();
    }

    private static List<Tensor> tensors(ByteBuffer frame) throws Failure {
        ByteBuffer descriptor = part(frame, frame.getInt());
        int count = Short.toUnsignedInt(descriptor.getShort());
        List<Tensor> found = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int datatype = descriptor.get();
            long[] shape = new long[Byte.toUnsignedInt(descriptor.get())];
            byte[] name = new byte[Short.toUnsignedInt(descriptor.getShort())];
            long bytes = descriptor.getLong();
            for (int axis = 0; axis < shape.length; axis++) {
                shape[axis] = descriptor.getLong();
            }
            descriptor.get(name);
            if (bytes < 0 || bytes > frame.remaining()) {
                throw new Failure(INVALID_INPUT, "the frame is cut short");
            }
            found.add(new Tensor(new String(name, StandardCharsets.UTF_8), datatype, shape, part(frame, (int) bytes)));
        }
        return found;
    }

    // ------------------------------------------------------------ bytes and time

    /** CLOCK_MONOTONIC, which gateway and replicas share: on Linux this is what nanoTime reads. */
    private static long now() {
        return System.nanoTime();
    }

    /** Wait for the opening of an action's window; false where it has closed. */
    private static boolean start(long earliest, long latest) {
        for (long now = now(); earliest > now && (latest == 0 || now <= latest); now = now()) {
            try {
                Thread.sleep((earliest - now) / 1_000_000, (int) ((earliest - now) % 1_000_000));
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
        return latest == 0 || now() <= latest;
    }

    private static ByteBuffer little(byte[] bytes) {
        return ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    /** The next so many bytes of a buffer, as a buffer of their own. */
    private static ByteBuffer part(ByteBuffer whole, int bytes) {
        if (bytes < 0 || bytes > whole.remaining()) {
            throw new BufferUnderflowException();
        }
        ByteBuffer piece = whole.slice(whole.position(), bytes).order(ByteOrder.LITTLE_ENDIAN);
        whole.position(whole.position() + bytes);
        return piece;
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String error(String text) {
        return "{\"error\": " + Json.quoted(text) + "}";
    }

    private void answer(int type, long action, int status, String json) throws IOException {
        byte[] text = utf8(json);
        send(type, little(new byte[12 + text.length]).putLong(action).putShort((short) status).putShort((short) 0).put(text).array());
    }

    private void send(int type, byte[] body) throws IOException {
        ByteBuffer message = little(new byte[8 + body.length]);
        message.put((byte) 'L').put((byte) 'W').put((byte) VERSION).put((byte) type).putInt(body.length).put(body).flip();
        while (message.hasRemaining()) {
            channel.write(message);
        }
    }

    /** The next so many bytes of the stream; null where it ended before the first. */
    private ByteBuffer receive(int bytes) throws IOException {
        ByteBuffer buffer = little(new byte[bytes]);
        while (buffer.hasRemaining()) {
            if (channel.read(buffer) < 0) {
                if (buffer.position() == 0) {
                    return null;
                }
                throw new EOFException("the gateway closed the stream inside a message");
            }
        }
        return buffer.flip();
    }

    /** As much JSON as LOAD needs: objects, lists, texts, numbers, true, false, null. */
    static final class Json {
        private final String text;
        private int at;

        private Json(String text) {
            this.text = text;
        }

        static Map<String, Object> object(String text) {
            try {
                @SuppressWarnings("unchecked")
                var found = (Map<String, Object>) new Json(text).value();
                return found;
            } catch (ClassCastException | IllegalArgumentException | StringIndexOutOfBoundsException error) {
                throw new Garbage("this is not the JSON of an action: " + error.getMessage());
            }
        }

        static String quoted(String text) {
            var out = new StringBuilder("\"");
            for (char c : text.toCharArray()) {
                if (c == '"' || c == '\\') {
                    out.append('\\').append(c);
                } else if (c < 0x20) {
                    out.append(String.format("\\u%04x", (int) c));
                } else {
                    out.append(c);
                }
            }
            return out.append('"').toString();
        }

        private char peek() {
            while (Character.isWhitespace(text.charAt(at))) {
                at++;
            }
            return text.charAt(at);
        }

        private boolean took(char wanted) {
            boolean is = peek() == wanted;
            at += is ? 1 : 0;
            return is;
        }

        private Object value() {
            char c = peek();
            if (took('{')) {
                Map<String, Object> members = new HashMap<>();
                while (!took('}')) {
                    String name = (String) value();
                    if (!took(':')) {
                        throw new IllegalArgumentException("a member without a value");
                    }
                    members.put(name, value());
                    took(',');
                }
                return members;
            }
            if (took('[')) {
                List<Object> items = new ArrayList<>();
                while (!took(']')) {
                    items.add(value());
                    took(',');
                }
                return items;
            }
            if (took('"')) {
                return string();
            }
            int start = at;
            while (at < text.length() && ",}] \t\r\n".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String word = text.substring(start, at);
            return switch (word) {
                case "null" -> null;
                case "true" -> true;
                case "false" -> false;
                default -> Double.valueOf(word);
            };
        }

        private String string() {
            var out = new StringBuilder();
            for (char c = text.charAt(at++); c != '"'; c = text.charAt(at++)) {
                if (c != '\\') {
                    out.append(c);
                    continue;
                }
                char escaped = text.charAt(at++);
                if (escaped == 'u') {
                    out.append((char) Integer.parseInt(text.substring(at, at += 4), 16));
                } else {
                    int known = "nrtbf".indexOf(escaped);
                    out.append(known < 0 ? escaped : "\n\r\t\b\f".charAt(known));
                }
            }
            return out.toString();
        }
    }

    public static void main(String[] words) {
        if (words.length != 1) {
            System.err.println("usage: java Container SOCKET; see README.md");
            System.exit(64);
        }
        int code = 0;
        try (SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX)) {
            code = 69;
            channel.connect(UnixDomainSocketAddress.of(words[0]));
            code = 0;
            new Container(channel).run();
        } catch (Garbage garbage) {
            System.err.println("container: " + garbage.getMessage());
            code = 65;
        } catch (IOException error) {  // inside a message: the gateway has ended, and so does this
            if (code != 0) {
                System.err.println("container: cannot connect to the gateway: " + error.getMessage());
            }
        }
        System.exit(code);
    }
}
