// Runs the steps that it reads from stdin (JSON) against a node, with rhea, and writes what happened to stdout (JSON).
//
//   {"port": 5672, "username": "guest", "password": "guest", "steps": [
//     {"do": "publish", "address": "orders", "partition": "1", "messages": [{"body": "x", "key": "k", "target": "1"}]},
//     {"do": "consume", "address": "orders", "count": 3, "partition": "1", "group": "g", "epoch": 1,
//      "filters": {"name": {"descriptor": 513, "sql": "TRUE"}, "other": {"descriptor": 512, "offset": "@earliest"}}}]}
'use strict';

const rhea = require('rhea');
const types = rhea.types;

function linkProperties(step) {
    const properties = {};
    if (step.partition !== undefined) properties['event-streams-partition'] = types.wrap_symbol(step.partition);
    if (step.group !== undefined) properties['event-streams-consumer-group'] = step.group;
    if (step.epoch !== undefined) properties['event-streams-epoch'] = types.wrap_long(step.epoch);
    return properties;
}

function filterSet(filters) {
    const set = {};
    for (const [name, filter] of Object.entries(filters || {})) {
        let value = filter.sql;
        if (value === undefined) {
            value = {};
            if (filter.offset !== undefined) value['event-streams-offset'] = types.wrap_symbol(filter.offset);
            if (filter.timestamp !== undefined) {
                value['event-streams-timestamp'] = types.wrap_timestamp(filter.timestamp);
            }
            value = types.wrap_symbolic_map(value);
        }
        set[name] = types.wrap_described(value, filter.descriptor);
    }
    return set;
}

function plain(value) {
    if (value instanceof Date) return value.getTime();
    if (Buffer.isBuffer(value)) return value.toString('utf8');
    if (Array.isArray(value)) return value.map(plain);
    if (value && value.constructor === Object) {
        return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, plain(v)]));
    }
    return value === undefined ? null : value;
}

function failure(context) {
    const link = context.receiver || context.sender;
    return {error: String(link.error ? link.error.condition : null)};
}

function publish(connection, step) {
    return new Promise((resolve) => {
        const sender = connection.open_sender({target: step.address, properties: linkProperties(step)});
        const outcomes = [];
        let sent = 0;
        const settled = (outcome) => (context) => {
            const state = context.delivery.remote_state;
            outcomes[context.delivery.id - first] = outcome === 'rejected' ? String(state.error.condition) : outcome;
            if (outcomes.filter((o) => o !== undefined).length === step.messages.length) {
                sender.close();
                resolve({outcomes, properties: plain(sender.remote.attach.properties || {})});
            }
        };
        let first = 0;
        for (const outcome of ['accepted', 'rejected', 'released']) sender.on(outcome, settled(outcome));
        sender.on('sender_error', (context) => resolve(failure(context)));
        sender.on('sendable', () => {
            while (sender.sendable() && sent < step.messages.length) {
                const {body, key, target} = step.messages[sent];
                const message = {body};
                if (key !== undefined) message.message_annotations = {'event-streams-group-key': key};
                if (target !== undefined) {
                    message.delivery_annotations = {'event-streams-target-partition': types.wrap_symbol(target)};
                }
                const delivery = sender.send(message);
                if (sent === 0) first = delivery.id;
                sent += 1;
            }
        });
    });
}

function consume(connection, step) {
    return new Promise((resolve) => {
        const source = {address: step.address};
        if (step.filters) source.filter = filterSet(step.filters);
        const receiver = connection.open_receiver({source, properties: linkProperties(step), credit_window: 0});
        const events = [];
        let echoed = null;
        receiver.on('receiver_open', () => {
            echoed = Object.keys(receiver.source.filter || {});
            if (step.count) receiver.add_credit(step.count);
        });
        receiver.on('receiver_error', (context) => resolve(failure(context)));
        receiver.on('message', (context) => {
            events.push({
                body: plain(context.message.body),
                delivery: plain(context.message.delivery_annotations || {}),
                annotations: plain(context.message.message_annotations || {}),
            });
            if (events.length === step.count) {
                receiver.close();
                resolve({events, echoed, properties: plain(receiver.remote.attach.properties || {})});
            }
        });
    });
}

let input = '';
process.stdin.on('data', (chunk) => { input += chunk; });
process.stdin.on('end', () => {
    const run = JSON.parse(input);
    const connection = rhea.connect({
        host: '127.0.0.1', port: run.port, username: run.username, password: run.password, reconnect: false,
    });
    connection.on('connection_open', async () => {
        const offered = plain(connection.remote.open.offered_capabilities);
        const results = [];
        for (const step of run.steps) {
            results.push(await (step.do === 'publish' ? publish : consume)(connection, step));
        }
        process.stdout.write(JSON.stringify({offered, results}) + '\n');
        connection.close();
    });
    connection.on('connection_error', (context) => {
        const error = context.error || context.connection.error;
        process.stdout.write(JSON.stringify({error: String(error.condition || error)}) + '\n');
    });
    connection.on('disconnected', (context) => {
        if (context.error) process.stdout.write(JSON.stringify({error: String(context.error)}) + '\n');
    });
});
